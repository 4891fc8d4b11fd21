"""Are the detectors of a planned job better than MobileNetV3-Small with the same kind of head?

For each seed, the recipe runs from images to bundles. MobileNetV3-Small at two widths, with a dense
head, is trained alone on one core for two thirds of the minutes, with the planned settings of the
training. All are timed together. The boxes of each bundle in the test images are also written to a
file in COCO's format, with pixels, and pycocotools scores them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import nn

from experiments.alone import Alone, for_seconds, train_alone
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import Network, of_job
from hwnas.deploy import Bundle, Target, measure
from hwnas.deploy.boxes import found_boxes
from hwnas.search import ImageData
from hwnas.search.data.boxes import NO_BOX
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.registry import named_space
from hwnas.stages.run_inputs import RunInputs

OURS, RIVALS = "hwnas", "alone"
WIDTHS = (0.35, 0.75)
RIVAL_SHARE = 2 / 3
HEAD = {"stride": 8, "channels": [64]}
TARGET = "cpu-onnxruntime-fp32-b1-t1"
_PREDICTED_AT_ONCE = 128


def work(arguments: argparse.Namespace) -> None:
    config = {"widths": WIDTHS, "rival_share": RIVAL_SHARE, "head": HEAD, "target": TARGET}
    setting = Setting(arguments, config)
    done = {row.seed for row in setting.answers.rows}
    for seed in setting.seeds:
        if seed not in done:
            rows = observe(setting, seed)
            setting.observations.put(rows)
            setting.answer(judge(rows, seed))
    setting.show()


def observe(setting: Setting, seed: int) -> list[Row]:
    """Make the networks of both sides, resuming interrupted work, and time them together."""
    folder, job = setting.work / f"seed-{seed}", setting.experiment(seed)
    minutes = job.recipe.run.minutes
    assert minutes is not None
    print(f"seed {seed}: running the whole job of {minutes:g} minutes", flush=True)
    ours, run_inputs, seconds = of_job(OURS, job, folder / OURS)
    training = for_seconds(run_inputs, 60 * minutes * RIVAL_SHARE)
    with cores(run_inputs.recipe) as at_once:
        theirs, _ = train_alone(
            RIVALS, rivals(run_inputs), run_inputs, [training], folder / RIVALS, at_once
        )
    measured = measure({n.subject: n.onnx for n in (*ours, *theirs)}, Target.parse(TARGET))
    data, rows = run_inputs.data, []
    truth = written_truth(data, folder / "truth.json")
    for network in (*ours, *theirs):
        found = measured[network.subject]
        details = {
            "side": network.side,
            "latency_ms": found.latency_ms,
            "validation_map": network.validation,
            "macs": network.macs,
            "architecture": network.architecture,
        }
        spread = {"p20": found.headline.p20, "p80": found.headline.p80}
        scored = _row("test_map", network.subject, seed, network.test, len(data.test), details)
        timed = Row("latency", network.subject, seed, found.latency_ms, "ms", found.n, spread)
        rows += [scored, timed]
    for network in ours:
        boxes = written_boxes(network, data, folder / f"{network.id}.json")
        again = map_of_files(truth, boxes)
        rows.append(_row("map_of_boxes", network.subject, seed, again, len(data.test)))
    return [*rows, Row("job_over_budget", OURS, seed, seconds / (60 * minutes), "ratio", 1)]


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Compare the front of a job with each rival.

    ``map_gain``: mAP of the finalist that is best on validation images among those that are at most
    as slow as the rival, less the rival's. ``speed_at_map``: latency of the rival over that of the
    fastest finalist with at least its mAP; 0 if there is none.
    """
    scored = [row for row in rows if row.metric == "test_map"]
    ours, theirs = ([r for r in scored if r.details["side"] == side] for side in (OURS, RIVALS))
    again = {row.subject: row.value for row in rows if row.metric == "map_of_boxes"}
    difference = max(abs(again[row.subject] - row.value) for row in ours)
    best = max(ours, key=lambda row: float(row.details["validation_map"]))
    found = [
        _row("test_map", f"{OURS} most-accurate", seed, best.value, best.n, best.details),
        _row("map_difference", "boxes of bundles", seed, difference, best.n),
        next(row for row in rows if row.metric == "job_over_budget"),
    ]
    for rival in theirs:
        limit = float(rival.details["latency_ms"])
        fast = [row for row in ours if row.details["latency_ms"] <= limit]
        good = [float(r.details["latency_ms"]) for r in ours if r.value >= rival.value]
        found.append(_row("test_map", rival.subject, seed, rival.value, rival.n, rival.details))
        if fast:
            chosen = max(fast, key=lambda row: float(row.details["validation_map"]))
            gain = chosen.value - rival.value
            found.append(_row("map_gain", rival.subject, seed, gain, rival.n))
        speed = limit / min(good) if good else 0.0
        found.append(Row("speed_at_map", rival.subject, seed, speed, "ratio", rival.n))
    return found


def _row(
    metric: str,
    subject: str,
    seed: int,
    value: float,
    n: int,
    details: dict[str, object] | None = None,
) -> Row:
    return Row(metric, subject, seed, value, "fraction", n, details=details or {})


def rivals(run_inputs: RunInputs) -> list[Alone]:
    """Return MobileNetV3-Small at several widths, each with a dense head."""
    shape, found = run_inputs.data.image_shape, []
    fixed = {"preset": "mobilenet-v3-small", "dropout": 0.0, "resolution": [shape[0]]}
    for width in WIDTHS:
        options = {**fixed, "width": [width], "dense_head": HEAD}
        space = named_space("mobilenet", shape, run_inputs.task.outputs, options, maps=True)
        about = {"width": width, "resolution": shape[0]}
        name, build = f"mobilenet-v3-small-w{width:g}", partial(_built, space)
        sizes = (shape[2], *shape[:2])
        found.append(Alone(name, build, sizes, about, traceable=space.traceable))
    return found


def _built(space: SearchSpace) -> nn.Module:
    return space.build(space.smallest())


def written_truth(data: ImageData, path: Path) -> Path:
    """Write the objects of the test images as a file in COCO's format."""
    height, width, _ = data.image_shape
    assert data.class_names is not None
    annotations = []
    for image, boxes in enumerate(data.test.targets.tolist()):
        for *sides, kind in boxes:
            if kind != NO_BOX:
                box = _pixels(sides, width, height)
                annotations.append(
                    {
                        "id": 1 + len(annotations),
                        "image_id": image,
                        "category_id": int(kind),
                        "bbox": box,
                        "area": box[2] * box[3],
                        "iscrowd": 0,
                    }
                )
    content = {
        "images": [{"id": n, "width": width, "height": height} for n in range(len(data.test))],
        "categories": [{"id": n, "name": name} for n, name in enumerate(data.class_names)],
        "annotations": annotations,
    }
    path.write_text(json.dumps(content))
    return path


def written_boxes(network: Network, data: ImageData, path: Path) -> Path:
    """Write the boxes that a bundle finds in the test images as a file of COCO results."""
    height, width, _ = data.image_shape
    bundle, results = Bundle.load(network.onnx.parent), []
    for start in range(0, len(data.test), _PREDICTED_AT_ONCE):
        rows = range(start, min(start + _PREDICTED_AT_ONCE, len(data.test)))
        images, _ = data.test.take(rows)
        for image, boxes in zip(rows, found_boxes(np.asarray(bundle.predict(images))), strict=True):
            for *sides, kind, score in boxes.tolist():
                if score:
                    box = _pixels(sides, width, height)
                    results.append(
                        {"image_id": image, "category_id": int(kind), "bbox": box, "score": score}
                    )
    path.write_text(json.dumps(results))
    return path


def _pixels(sides: Sequence[float], width: int, height: int) -> list[float]:
    """Return left, top, width and height in pixels of a box with sides as shares."""
    left, top, right, bottom = sides
    return [left * width, top * height, (right - left) * width, (bottom - top) * height]


def map_of_files(truth: Path, found: Path) -> float:
    """Return the mean average precision of COCO's own evaluation of two files."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(truth))
        evaluation = COCOeval(coco, coco.loadRes(str(found)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


if __name__ == "__main__":
    main(
        Path(__file__).parent,
        __doc__,
        work,
        seeds=(0,),
        recipe=Path(__file__).with_name("recipe.toml"),
    )
