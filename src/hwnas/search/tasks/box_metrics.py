"""Mean average precision of boxes, as COCO defines it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hwnas.search.data.boxes import NO_BOX, Boxes
from hwnas.search.tasks.delta_method import MetricValue

__all__ = ["BOX_METRICS", "box_metrics"]

BOX_METRICS: Mapping[str, slice] = {
    "map": slice(None),
    "map_50": slice(0, 1),
    "map_75": slice(5, 6),
}
"""Thresholds of the intersection over union, of .5, .55, ..., .95, that a metric is the mean of."""

_MOST = 100  # boxes of an image and class


def box_metrics(
    names: Sequence[str], found: npt.NDArray[np.float32], true: Boxes, classes: int
) -> dict[str, MetricValue]:
    """Return mean average precisions over classes and thresholds.

    The values are those of pycocotools: a box is right if its intersection over union with an
    object of its class is at least the threshold and no box with a higher score has that object;
    the precision, made falling, is averaged over 101 recalls (Lin et al., "Microsoft COCO", ECCV
    2014). A class without objects is left out. The influence of an image is the derivative of the
    area under this curve with respect to the weight of the image, as in `average_precision`.

    Args:
        names: Names, of `BOX_METRICS`.
        found: Boxes (N, M, 6) with scores; see `hwnas.deploy.boxes.found_boxes`.
        true: Objects (N, M', 5).
        classes: Number of classes.
    """
    evaluation = _evaluated(found, true, classes)
    precision = evaluation.eval["precision"][..., 0, 0]  # threshold, recall, class
    influence = _influences(evaluation, len(true), classes)
    result = {}
    for name in names:
        chosen = precision[BOX_METRICS[name]]
        there = chosen[chosen > -1]
        value = float(there.mean()) if there.size else float("nan")
        result[name] = MetricValue(
            value, torch.from_numpy(influence[BOX_METRICS[name]].mean(axis=0))
        )
    return result


def _evaluated(found: npt.NDArray[np.float32], true: Boxes, classes: int) -> Any:
    """Return COCO's evaluation of boxes."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, results = COCO(), COCO()
    images = [{"id": image} for image in range(len(true))]
    categories = [{"id": kind} for kind in range(classes)]
    for coco, rows, wanted in (
        (truth, true, true[..., 4] != NO_BOX),
        (results, found, found[..., 5] > 0),
    ):
        image, _ = np.nonzero(wanted)
        chosen = rows[wanted].astype(np.float64)
        sides = chosen[:, 2:4] - chosen[:, :2]
        coco.dataset = {
            "images": images,
            "categories": categories,
            "annotations": [
                {
                    "id": number + 1,  # 0 would mean that no box matches
                    "image_id": int(image[number]),
                    "category_id": int(row[4]),
                    "bbox": [row[0], row[1], *side],
                    "area": float(side[0] * side[1]),
                    "score": float(row[-1]),
                    "iscrowd": 0,
                }
                for number, (row, side) in enumerate(zip(chosen, sides, strict=True))
            ],
        }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        results.createIndex()
        evaluation = COCOeval(truth, results, "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [_MOST]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


def _influences(evaluation: Any, images: int, classes: int) -> npt.NDArray[np.float64]:
    """Return the influence of each image on the average precision at each threshold, (T, N)."""
    thresholds = len(evaluation.params.iouThrs)
    total, counted = np.zeros((thresholds, images)), 0
    for kind in range(classes):
        each = evaluation.evalImgs[kind * images : (kind + 1) * images]
        objects = np.array([0 if e is None else len(e["gtIds"]) for e in each])
        if not objects.sum():
            continue
        counted += 1
        there = [(image, e) for image, e in enumerate(each) if e is not None and e["dtIds"]]
        if not there:
            continue
        scores = np.concatenate([e["dtScores"] for _, e in there])
        order = np.argsort(-scores, kind="stable")
        owner = np.repeat([image for image, _ in there], [len(e["dtIds"]) for _, e in there])[order]
        hits = np.concatenate([e["dtMatches"] for _, e in there], axis=1)[:, order] > 0
        for threshold in range(thresholds):
            total[threshold] += _influence(hits[threshold], owner, objects)
    return total / max(1, counted)


def _influence(
    hits: npt.NDArray[np.bool_], owner: npt.NDArray[np.int64], objects: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the influence of each image on one average precision, (N,).

    Args:
        hits: Whether each box is right, in the order of falling scores, (B,).
        owner: Image of each box, (B,).
        objects: Number of objects of each image, (N,).
    """
    above = np.arange(1, len(hits) + 1)
    precision = np.cumsum(hits) / above
    # The falling precision at a box is the highest one there or later, at the box `best`.
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    best = len(hits) - 1 - _last_record(precision[::-1])[::-1]
    average = float(falling[hits].sum() / objects.sum())
    used = np.bincount(best[hits], minlength=len(hits)) / above
    after = np.cumsum(used[::-1])[::-1]
    less = np.cumsum((used * precision)[::-1])[::-1]
    moved = np.where(hits, falling + after, 0.0) - less
    by_image = np.bincount(owner, moved, minlength=len(objects)) - average * objects
    influence: npt.NDArray[np.float64] = by_image * len(objects) / objects.sum()
    return influence


def _last_record(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the index of the maximum of the values up to each one, (B,)."""
    record = values >= np.maximum.accumulate(values)
    return np.maximum.accumulate(np.where(record, np.arange(len(values)), 0))
