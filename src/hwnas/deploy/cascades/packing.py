"""Writing of cascade folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import replacing_folder, write_text
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.checksums import sha256
from hwnas.deploy.bundles.image_file import prepared, upright_pixels
from hwnas.deploy.bundles.standalone import IMAGE_IMPORTS, standalone
from hwnas.deploy.cascades import runner as cascade_runner
from hwnas.deploy.cascades.cascade import (
    BIG,
    CARD,
    GOLDEN,
    RUNNER,
    SCHEMA,
    SEAL,
    SMALL,
    Cascade,
    CascadePart,
)
from hwnas.deploy.cascades.runner import confidences, unsure
from hwnas.deploy.export.comparison import TOLERANCE
from hwnas.deploy.onnx.graph import copy_model, external_files, model_bytes
from hwnas.errors import ConfigError
from hwnas.interval import row_interval

__all__ = ["write_cascade"]

_GOLDEN_IMAGES = 16


def write_cascade(
    folder: Path,
    *,
    small: Bundle,
    big: Bundle,
    rule: str,
    threshold: float,
    numbers: Sequence[Mapping[str, Any]],
    golden_images: NDArray[np.uint8],
    provenance: Mapping[str, Any],
) -> Cascade:
    """Write two networks as a cascade; the folder appears atomically and replaces an older one.

    Args:
        folder: Folder of the cascade.
        small: Bundle of the network that runs on every image.
        big: Bundle of the network that runs where the small one is unsure.
        rule: Confidence measure of the small network, a key of `CONFIDENCES`.
        threshold: Confidence below which an image goes to the big network, in 0..1.
        numbers: Objects with ``name``, ``value``, ``unit``, ``kind`` and ``of``, which is
            ``"cascade"`` or the id of a network; if known, also ``n``, ``split``,
            ``standard_error`` and ``target``.
        golden_images: Candidates for golden images, uint8 (N, H, W, C). Those of which the small
            network is least and most sure are stored, so that rounding does not decide which
            network answers.
        provenance: Origin of the networks, as JSON values.

    Raises:
        ConfigError: The two networks do not give class scores, or their labels differ.
        ArtifactError: A bundle is damaged.
        StorageError: The folder cannot be written.
    """
    _check_outputs(small, big)
    description: dict[str, Any] = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rule": rule,
        "threshold": threshold,
        "labels": list(small.outputs.labels),
        "outputs": small.outputs.to_json(),
        "small": _part(small, SMALL),
        "big": _part(big, BIG),
        "numbers": [dict(number) for number in numbers],
        "golden": {"images": min(_GOLDEN_IMAGES, len(golden_images)), "tolerance": TOLERANCE},
        "provenance": dict(provenance),
    }
    with replacing_folder(folder) as temporary:
        copy_model(small.onnx_file, temporary / SMALL)
        copy_model(big.onnx_file, temporary / BIG)
        write_text(temporary / RUNNER, _runner())
        write_text(temporary / CARD, _card(description))
        parts = CascadePart.of(small), CascadePart.of(big)
        images, scores = _golden(*parts, rule, threshold, golden_images)
        np.savez_compressed(temporary / GOLDEN, images=images, outputs=scores)
        _seal(temporary, description)
        Cascade.load(temporary).verify()
    return Cascade.load(folder)


def _check_outputs(small: Bundle, big: Bundle) -> None:
    first, second = (bundle.description["id"] for bundle in (small, big))
    for bundle in (small, big):
        if bundle.outputs.kind != "class_scores":
            raise ConfigError(
                f"network {bundle.description['id']} gives {bundle.outputs.kind}; a cascade needs "
                "two networks that give class_scores"
            )
    ours, theirs = small.outputs.labels, big.outputs.labels
    if ours == theirs:
        return
    told = f"{first} has {len(ours)} labels and {second} {len(theirs)}"
    if len(ours) == len(theirs):
        place, (one, other) = next(
            (i, pair) for i, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) > 1
        )
        told = f"label {place} of {first} is {one!r}, and that of {second} {other!r}"
    raise ConfigError(
        f"{told}; a cascade needs two networks with the same labels in the same order"
    )


def _runner() -> str:
    """Return the source of the runner, which imports nothing from hwnas."""
    source = Path(cascade_runner.__file__).read_text(encoding="utf-8")
    shared = (prepared, upright_pixels)
    own = f"\nfrom {prepared.__module__} import {', '.join(each.__name__ for each in shared)}\n"
    before, found, after = source.partition(own)
    assert found
    head, mark, body = after.partition("\n\ndef ")
    code = standalone(*shared)
    return f"{before}{IMAGE_IMPORTS}\n{head}\n\n{code}\n\n{mark.lstrip()}{body}"


def _part(bundle: Bundle, file: str) -> dict[str, Any]:
    about = bundle.description
    return {
        "id": about["id"],
        "file": file,
        "bytes": model_bytes(bundle.onnx_file),
        **{key: about[key] for key in ("architecture", "preprocessing", "measurements")},
    }


def _golden(
    small: CascadePart, big: CascadePart, rule: str, threshold: float, images: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    scores = small.scores(images)
    distance = confidences(scores, rule) - threshold
    ordered = np.argsort(distance, kind="stable")
    half = min(_GOLDEN_IMAGES, len(images)) // 2
    few = np.concatenate([ordered[: _GOLDEN_IMAGES - half], ordered[len(images) - half :]])
    chosen, outputs = images[few], scores[few]
    on = unsure(outputs, rule, threshold)
    if on.any():
        outputs[on] = big.scores(chosen[on])
    return chosen, outputs


def _seal(folder: Path, description: Mapping[str, Any]) -> None:
    """Write cascade.json with the checksums of the other files, then the list of all checksums."""
    beside = [name for part in (SMALL, BIG) for name in external_files(folder / part)]
    names = (SMALL, BIG, *beside, GOLDEN, RUNNER, CARD)
    files = {name: sha256(folder / name) for name in names}
    SEAL.write(folder, {**description, "files": files}, files)


def _card(about: Mapping[str, Any]) -> str:
    """Return the model card of the cascade in Markdown."""
    small, big = about["small"], about["big"]
    rows = [
        "| metric | value | n | kind | network | split or target |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_number(number) for number in about["numbers"]),
    ]
    return "\n".join(
        [
            f"# Cascade {small['id']} -> {big['id']}",
            "",
            f"Network {small['id']} runs on every image ({_size(small)}). If it is unsure, network "
            f"{big['id']} ({_size(big)}) gives the prediction instead: if {_RULES[about['rule']]} "
            f"less than {about['threshold']:.4g}. Both networks distinguish "
            f"{len(about['labels'])} classes. Created on {about['created']} by hwnas.",
            "",
            "## Numbers",
            "",
            *rows,
            "",
            "Measured: timed on the target, on images of the test split, without preprocessing. "
            "Evaluated: computed on the images of that split, with the 95 % confidence interval. "
            "Modelled: cost of the small network and of the decision, plus the cost of the big "
            "network multiplied by the share of images on which it runs.",
            "",
            *_unknown_energy(about["numbers"]),
            "## Run it",
            "",
            "After `pip install onnxruntime numpy pillow`, in this folder: "
            "`python runner.py image.png`. `hwnas run . image.png` does the same; "
            "`hwnas verify .`, `python runner.py --verify` and `sha256sum -c cascade.sha256` check "
            "that the files are intact.",
            "",
        ]
    )


def _unknown_energy(numbers: Sequence[Mapping[str, Any]]) -> list[str]:
    if any(number["name"] == "energy" for number in numbers):
        return []
    return ["The energy of an image is unknown: it was neither measured nor predicted.", ""]


_RULES = {
    "margin": "the probability of the most probable class exceeds that of the second by",
    "maximum": "the most probable class has a probability of",
}


def _size(part: Mapping[str, Any]) -> str:
    how = part["preprocessing"]
    return f"{how['height']} x {how['width']} pixels, {part['bytes'] / 1e3:.0f} kB"


def _number(number: Mapping[str, Any]) -> str:
    interval = row_interval(number)
    spread = "" if interval is None else f" ({interval.low:.4g} to {interval.high:.4g})"
    unit = "" if number["unit"] == "fraction" else f" {number['unit']}"
    where = number.get("split") or number.get("target") or ""
    value = f"{number['value']:.4g}{spread}{unit}"
    cells = number["name"], value, str(number.get("n", "")), number["kind"], number["of"], where
    return f"| {' | '.join(cells)} |"
