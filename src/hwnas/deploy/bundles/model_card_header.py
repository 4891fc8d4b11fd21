"""YAML header of a model card, as model hubs read it (Hugging Face's model cards)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["card_header"]

_TASKS = {
    "class_scores": "image-classification",
    "pixel_class_scores": "image-segmentation",
    "boxes": "object-detection",
    "picture": "image-to-image",
    "next_byte_scores": "text-generation",
}
"""Task names of model hubs by kind of output; hubs have no name for values."""
_LICENCES = (
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0",
    "cc-by-nc-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "unlicense",
)  # fmt: skip
"""Licence identifiers of model hubs; any other licence is written as ``other``, with its name."""


def card_header(description: Mapping[str, Any]) -> list[str]:
    """Return the lines of the header, from the contents of bundle.json."""
    task = _TASKS.get(description["outputs"]["kind"])
    return [
        "---",
        *_licence(description["provenance"].get("licence")),
        "library_name: onnx",
        *([f"pipeline_tag: {task}"] if task else []),
        "tags:",
        *(f"- {tag}" for tag in ("onnx", "onnxruntime", "neural-architecture-search", "hwnas")),
        *_model_index(description, task or "other"),
        "---",
    ]


def _licence(licence: Any) -> Iterable[str]:
    if licence is None:
        return ["license: unknown"]
    short = re.sub(r"\s+", "-", str(licence).strip().lower())
    if short in _LICENCES:
        return [f"license: {short}"]
    return ["license: other", f"license_name: {_text(licence)}"]


def _model_index(description: Mapping[str, Any], task: str) -> Iterable[str]:
    """Yield the lines on evaluated metrics, grouped by split; nothing if there are none."""
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for number in description["metrics"]:
        if number["kind"] == "evaluated" and math.isfinite(number["value"]):
            splits.setdefault(str(number.get("split", "not stated")), []).append(number)
    if not splits:
        return
    data = description["provenance"].get("data", "not stated")
    source = data.get("source", "not stated") if isinstance(data, Mapping) else data
    yield from ("model-index:", f"- name: {_text(description['id'])}", "  results:")
    for split, numbers in splits.items():
        yield from (
            "  - task:",
            f"      type: {task}",
            "    dataset:",
            f"      name: {_text(source)}",
            f"      type: {_text(source)}",
            f"      split: {_text(split)}",
            "    metrics:",
        )
        for number in numbers:
            yield f"    - type: {_text(number['name'])}"
            yield f"      value: {_number(number['value'])}"
            yield f"      name: {_text(_title(number, split))}"


def _title(number: Mapping[str, Any], split: str) -> str:
    of = f", n = {number['n']}" if "n" in number else ""
    unit = f", {number['unit']}" if number.get("unit") else ""
    return f"{number['name']} ({number['kind']}, {split}{of}{unit})"


def _number(value: float) -> str:
    """Return a number as YAML reads it: without a decimal point, 1e-05 would be text."""
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _text(value: Any) -> str:
    """Return a value as a double-quoted YAML scalar, which is text on one line and is no HTML."""
    plain = (c if c.isprintable() and c not in '"\\<' else f"\\U{ord(c):08x}" for c in str(value))
    return f'"{"".join(plain)}"'
