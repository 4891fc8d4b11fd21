"""Model card of a bundle: the README that describes the network to people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hwnas.deploy.boxes import found_boxes
from hwnas.deploy.bundles.bundle import MODEL
from hwnas.deploy.bundles.image_file import PILLOW_MODES, prepared, upright_pixels
from hwnas.deploy.bundles.model_card_header import card_header
from hwnas.deploy.bundles.standalone import IMAGE_IMPORTS, standalone
from hwnas.deploy.export.exporters import INPUT
from hwnas.deploy.pictures import picture_of
from hwnas.deploy.text import continued
from hwnas.interval import (
    is_proportion,
    lognormal_interval,
    paired_difference_interval,
    row_interval,
)

__all__ = ["card"]

_LABELS_SHOWN = 20
_ANSWERS = {
    "class_scores": ["print(labels[outputs[0].argmax()])"],
    "pixel_class_scores": [
        "mask = outputs[0].argmax(0).astype(np.uint8)  # index into labels for each pixel",
        "print({label: float((mask == i).mean()) for i, label in enumerate(labels)})",
        'Image.fromarray(mask).save("mask.png")',
    ],
    "label_scores": ["print(dict(zip(labels, 1 / (1 + np.exp(-outputs[0])))))"],
    "task_class_scores": [
        "start = 0",
        'for task, count in about["outputs"]["tasks"]:',
        "    scores = outputs[0, start : start + count]",
        "    print(task, labels[start + int(scores.argmax())])",
        "    start += count",
    ],
    "next_byte_scores": [
        'prompt = b"The "',
        'length = preprocessing["width"]',
        "",
        "",
        "def predict(window):",
        "    return session.run(None, {name: window.transpose(0, 3, 1, 2).astype(np.float32)})[0]",
        "",
        "",
        "print((prompt + continued(predict, prompt, 100, length)).decode(errors='replace'))",
    ],
    "values": ["print(dict(zip(labels, values)) if labels else values)"],
    "boxes": [
        "for *sides, kind, score in found_boxes(outputs)[0]:",
        "    if score >= 0.3:  # sides: left, top, right, bottom as shares of width and height",
        "        print(labels[int(kind)], round(float(score), 2), *map(float, sides))",
    ],
    "picture": [
        "",
        "",
        "def pictures(tiles):",
        "    inputs = [prepared(tile, preprocessing) for tile in tiles]",
        "    maps = np.concatenate([session.run(None, {name: each})[0] for each in inputs])",
        '    scale, offset = (np.array(about["outputs"][key]) for key in ("scale", "offset"))',
        "    pixels = maps.transpose(0, 2, 3, 1) * scale + offset",
        "    return (pixels * 255).round().clip(0, 255).astype(np.uint8)",
        "",
        "",
        'tile = preprocessing["height"], preprocessing["width"]',
        'upscale = about["outputs"]["shape"][2] // tile[0]',
        "picture = picture_of(pixels, tile, upscale, pictures)",
        'Image.fromarray(picture.squeeze()).save("picture.png")',
    ],
}
"""Lines of the model card's example that print the outputs, by kind of output."""
_FUNCTIONS: Mapping[str, Callable[..., object]] = {"boxes": found_boxes, "picture": picture_of}
"""Function that the example needs, by kind of output."""
_NO_LICENCE = "not stated; the terms of the training data apply"


def card(description: Mapping[str, Any]) -> str:
    """Return a model card in Markdown, with a header for model hubs.

    Args:
        description: Contents of bundle.json.
    """
    return "\n".join(
        [
            *card_header(description),
            "",
            f"# Network {description['id']}",
            "",
            _summary(description),
            "",
            "## Numbers",
            "",
            *_table(
                ("metric", "value", "spread", "n", "kind", "split or target"),
                _numbers(description),
            ),
            "",
            "Measured: timed on the target. Evaluated: computed on the images of that split, with "
            "the 95 % confidence interval. Predicted: estimated by a model, with the 90 % "
            "prediction interval. Counted: follows from the network itself.",
            "",
            *_early_exit(description),
            *_variants(description),
            *_converted(description),
            "## Run it",
            "",
            *_run(description),
            "",
            "## Choices",
            "",
            *_table(("choice", "option"), _choices(description).items()),
            "",
            "## Provenance",
            "",
            f"Licence: {_cell(description['provenance'].get('licence', _NO_LICENCE))}",
            "",
            *_table(("entry", "value"), _flat(description["provenance"])),
            "",
        ]
    )


def _summary(description: Mapping[str, Any]) -> str:
    inputs, outputs = description["preprocessing"], description["outputs"]
    labels = [_cell(label) for label in outputs["labels"]]
    shown = ", ".join(labels[:_LABELS_SHOWN]) + (", ..." if len(labels) > _LABELS_SHOWN else "")
    gives = f"one score for each of {len(labels)} classes ({shown})"
    if outputs["kind"] == "label_scores":
        gives = f"a logit for each of {len(labels)} labels ({shown})"
    if outputs["kind"] == "task_class_scores":
        of_tasks = ", ".join(
            f"{count} classes of {_cell(name)}" for name, count in outputs["tasks"]
        )
        gives = f"scores for {len(outputs['tasks'])} tasks side by side: {of_tasks}"
    if outputs["kind"] == "pixel_class_scores":
        gives = f"for each pixel {gives}"
        height, width = outputs["shape"][2:]
        if (height, width) != (inputs["height"], inputs["width"]):
            gives += f", at {height} x {width} pixels"
    if outputs["kind"] == "next_byte_scores":
        gives = f"after each of {inputs['width']} bytes, one score for each byte that may follow"
    if outputs["kind"] == "boxes":
        height, width = outputs["shape"][2:]
        gives = f"a box and {gives} for each of {height} x {width} cells"
    if outputs["kind"] == "picture":
        height, width = outputs["shape"][2:]
        gives = (
            f"a picture of {height} x {width} pixels, to be multiplied by `scale` and added to "
            "`offset` of bundle.json; larger images are divided into tiles"
        )
    if outputs["kind"] == "values":
        gives = f"values{f' ({shown})' if labels else ''}"
        if "scale" in outputs:
            gives += ", to be multiplied by `scale` and added to `offset` of bundle.json"
    return (
        f"The network takes images of {inputs['height']} x {inputs['width']} pixels with "
        f"{inputs['channels']} channel{'s' * (inputs['channels'] > 1)} and gives {gives}. "
        f"Created on {description['created']} by hwnas; its ONNX file agrees with PyTorch within "
        f"{description['max_relative_error']:.1e} of the largest output.{_shipped(description)}"
    )


def _shipped(description: Mapping[str, Any]) -> str:
    """Return a sentence on the number format, if it is not single precision; no sweep chose it."""
    first, *others = description.get("artifacts", [{}])
    if not others or "measurement" in first:
        return ""
    return (
        f" It is shipped in {first['number_format']}, as {first['files'][0]}; its scores and "
        f"latencies are those of that file in {first['runtime']}."
    )


def _choices(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the network's choices, and those of other searched roles as ``role.name``."""
    choices = dict(description["architecture"]["values"])
    for role, found in description.get("roles", {}).items():
        choices |= {f"{role}.{name}": option for name, option in found["values"].items()}
    return choices


def _numbers(description: Mapping[str, Any]) -> Iterable[Sequence[Any]]:
    for number in (*description["metrics"], *description["predictions"]):
        yield (
            number["name"],
            _value(number["value"], number.get("unit", "")),
            _spread(number),
            number.get("n", ""),
            number["kind"],
            number.get("split") or number.get("target") or "",
        )
    for timed in description["measurements"]:
        headline = timed["cpu_ms"] if timed["clock"] == "cpu" else timed["wall_ms"]
        versions = ", ".join(f"{name} {version}" for name, version in timed["versions"].items())
        yield (
            f"latency ({timed['clock']} time, median{', contended' * timed['contended']})",
            _value(timed["latency_ms"], "ms"),
            f"p20 {headline['p20']:.4g}, p80 {headline['p80']:.4g}",
            timed["n"],
            "measured",
            f"{timed['target']} on {timed['hardware']} ({versions})",
        )


def _spread(number: Mapping[str, Any]) -> str:
    """Return the ends of a number's interval as text: 95 % for scores, 90 % for predictions.

    The text is empty for an exact number.
    """
    interval = row_interval(number)
    if interval is None and number.get("std") is not None and number["value"] > 0:
        interval = lognormal_interval(number["value"], number["std"])
    return "" if interval is None else f"{interval.low:.4g} to {interval.high:.4g}"


def _early_exit(description: Mapping[str, Any]) -> list[str]:
    """Return a paragraph on how images that leave early were timed, if some do."""
    for timed in description["measurements"]:
        settings = timed["settings"]
        if "early_exit_share" in settings:
            return [
                f"{float(settings['early_exit_share']):.1%} of the validation images leave the "
                "network at an early exit. Measured latencies are means over images: on "
                f"{timed['target']}, {float(settings['early_exit_ms']):.4g} ms for an image that "
                f"leaves, {float(settings['whole_network_ms']):.4g} ms for others.",
                "",
            ]
    return []


def _converted(description: Mapping[str, Any]) -> list[str]:
    """Return the section on files in further formats, if there are any."""
    made = description.get("converted", ())
    if not made:
        return []
    judged = [each["quality"] for each in made if each.get("quality")]
    rows = [
        (
            each["main"],
            each["format"],
            each["batch"],
            each["not_run"] or f"agree within {each['difference']:.1e} of the largest output",
            *(_quality(each.get("quality")) if judged else ()),
            ", ".join(f"{name} {version}" for name, version in each["versions"].items()),
        )
        for each in made
    ]
    head = (
        "file",
        "format",
        "batch, where it is fixed",
        "outputs, compared with ONNX",
        *((f"{judged[0]['metric']} (evaluated)", "loss") if judged else ()),
        "made by",
    )
    return ["## Further formats", "", *_table(head, rows), ""]


def _variants(description: Mapping[str, Any]) -> list[str]:
    """Return the section on the variants that a sweep evaluated, the chosen variant first."""
    swept = [each for each in description.get("artifacts", []) if "measurement" in each]
    if not swept:
        return []
    rows = []
    for each in swept:
        agreed = (each["answers"] or {}).get("share")
        rows.append(
            (
                each["variant"],
                each["target"],
                _value(each["measurement"]["latency_ms"], "ms"),
                *_quality(each["quality"]),
                "" if agreed is None else f"{agreed:.2%}",
                each["files"][0],
            )
        )
    metric = (swept[0]["quality"] or {}).get("metric", "quality")
    head = (
        "variant",
        "target",
        "latency (measured)",
        f"{metric} (evaluated)",
        "loss",
        "same predictions",
        "file",
    )
    return [
        "## Variants",
        "",
        *_table(head, rows),
        "",
        "The first variant was chosen: it has the lowest measured latency of the variants whose "
        "loss against the network in single precision is within the limit. Each variant was "
        "evaluated in the runtime of its target. Same predictions: share of the predictions that "
        "are equal to those of the network in single precision.",
        "",
    ]


def _quality(quality: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the metric of a file and its loss, both empty if it was not evaluated."""
    return (f"{quality['value']:.4f}", _loss(quality)) if quality else ("", "")


def _loss(quality: Mapping[str, Any]) -> str:
    proportion = is_proportion(quality.get("unit"))
    error, n = quality["loss_standard_error"], quality["n"]
    found = paired_difference_interval(quality["loss"], error, n, proportion=proportion)
    return f"{quality['loss']:.4f} ({found.low:.4f} to {found.high:.4f})"


def _value(value: Any, unit: str) -> str:
    number = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return f"{number} {unit}".strip()


def _run(description: Mapping[str, Any]) -> list[str]:
    """Return the section that tells how to run the network, with example code."""
    file, differs = _file_to_run(description)
    return [
        "After `pip install onnxruntime numpy pillow`, in this folder:",
        "",
        *_code(description, file),
        "",
        "`hwnas run . image.png` does the same"
        f"{differs}; `hwnas verify .` and `sha256sum -c bundle.sha256` check that the files are "
        "intact.",
    ]


def _file_to_run(description: Mapping[str, Any]) -> tuple[str, str]:
    """Return the file that the example runs in ONNX Runtime, and how `hwnas run` differs, if so."""
    artifacts = description.get("artifacts", [])
    if not artifacts:  # the card is written before the bundle is sealed
        return MODEL, ""
    first = artifacts[0]
    if first["runtime"] == "onnxruntime":
        return first["files"][0], ""
    same = [each for each in artifacts if each["runtime"] == "onnxruntime"]
    plain = [each for each in artifacts if each["variant"] == "fp32"]
    file = (same or plain or artifacts)[0]["files"][0]
    return file, f", with {first['files'][0]} in {first['runtime']}, whose outputs differ slightly"


def _code(description: Mapping[str, Any], file: str) -> list[str]:
    preprocessing = description["preprocessing"]
    channels = preprocessing["channels"]
    size = f"({preprocessing['height']}, {preprocessing['width']})"
    kind = description["outputs"]["kind"]
    if kind in ("pixel_class_scores", "picture"):
        size = "None"
    functions = [_FUNCTIONS[kind]] if kind in _FUNCTIONS else []
    if kind == "next_byte_scores":
        images = [*standalone(continued).splitlines(), "", ""]
    elif channels in PILLOW_MODES:
        images = [
            *standalone(prepared, upright_pixels, *functions).splitlines(),
            "",
            "",
            # Not opened by path: Pillow then maps rotated plain TIFF files with a wrong width.
            'with open("image.png", "rb") as file, Image.open(file) as image:',
            f'    pixels = upright_pixels(image, "{PILLOW_MODES[channels]}", {size})',
            f"pixels = pixels.reshape(*pixels.shape[:2], {channels})",
        ]
    else:
        images = [
            *standalone(prepared, *functions).splitlines(),
            "",
            "",
            f'pixels = np.load("image.npy")  # uint8 (height, width, {channels})',
        ]
    return [
        "```python",
        "import json",
        "",
        "import numpy as np",
        "import onnxruntime",
        *([] if kind == "next_byte_scores" else [IMAGE_IMPORTS]),
        "",
        "",
        *images,
        'with open("bundle.json", encoding="utf-8") as file:',
        "    about = json.load(file)",
        'labels, preprocessing = about["labels"], about["preprocessing"]',
        f'session = onnxruntime.InferenceSession("{file}")',
        *_called(kind),
        *_values(description["outputs"]),
        *_ANSWERS[kind],
        "```",
    ]


def _called(kind: str) -> Iterable[str]:
    """Return the line of the example that runs the network, unless that is done part by part."""
    if kind in ("picture", "next_byte_scores"):
        return [f'name = "{INPUT}"']
    return [f'outputs = session.run(None, {{"{INPUT}": prepared(pixels, preprocessing)}})[0]']


def _values(outputs: Mapping[str, Any]) -> Iterable[str]:
    """Return the line of the example that computes values from the outputs."""
    if outputs["kind"] != "values":
        return []
    if "scale" not in outputs:
        return ["values = outputs[0]"]
    affine = 'about["outputs"]["scale"]) + np.array(about["outputs"]["offset"])'
    return [f"values = outputs[0] * np.array({affine}"]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif f"{prefix}{key}" != "licence":
            yield f"{prefix}{key}", value


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(_cell, row)) + " |" for row in cells]


def _cell(value: Any) -> str:
    """Return text that stays within one cell of a Markdown table and is no HTML."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    escaped = text.replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
