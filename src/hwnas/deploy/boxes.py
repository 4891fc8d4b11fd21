"""Boxes around objects, decoded from the outputs of a network that detects objects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BOX_COLUMNS", "BOX_MAPS", "found_boxes"]

BOX_MAPS = 4
"""Number of maps that give a box: offsets of its centre, then logarithms of its sides."""

BOX_COLUMNS = ("left", "top", "right", "bottom", "class", "score")
"""Columns of `found_boxes`."""


def found_boxes(
    maps: NDArray[Any], most: int = 100, overlap: float = 0.6, candidates: int = 300
) -> NDArray[np.float32]:
    """Decode the outputs of a network to boxes.

    The outputs divide an image into cells. A cell of row i and column j gives one logit per class
    and (x, y, u, v): the centre of its box is (j + 1/2 + x, i + 1/2 + y), its width exp(u) and its
    height exp(v), all in cells (YOLOX; Ge et al., 2021, section 2.1). Of boxes of one class that
    overlap, only the one with the highest score is kept (non-maximum suppression).

    Args:
        maps: Outputs (N, classes + `BOX_MAPS`, h, w).
        most: Largest number of boxes of an image, M.
        overlap: Largest intersection over union of two boxes of one class, in [0, 1].
        candidates: Number of the highest scores of an image that become boxes before suppression.

    Returns:
        (N, M, 6): left, top, right and bottom as shares of the image's width and height, in [0, 1],
        the class, and the score, in (0, 1), falling. Rows without a box have the score 0.
    """
    n, channels, height, width = maps.shape
    classes = channels - 4
    logits = maps[:, :classes].reshape(n, -1).astype(np.float32)
    best = np.argsort(-logits, axis=1, kind="stable")[:, :candidates]
    scores = 1 / (1 + np.exp(-np.take_along_axis(logits, best, axis=1).clip(-30, 30)))
    kinds, cells = np.divmod(best, height * width)
    offsets = maps[:, classes:].reshape(n, 4, -1).astype(np.float32)
    x, y, u, v = np.moveaxis(np.take_along_axis(offsets, cells[:, None], axis=2), 1, 0)
    rows, columns = np.divmod(cells, width)
    centre_x, centre_y = (columns + 0.5 + x) / width, (rows + 0.5 + y) / height
    half_x, half_y = np.exp(u.clip(-10, 10)) / (2 * width), np.exp(v.clip(-10, 10)) / (2 * height)
    sides = [centre_x - half_x, centre_y - half_y, centre_x + half_x, centre_y + half_y]
    boxes = np.stack(sides, axis=2).clip(0, 1)
    found = np.zeros((n, most, 6), np.float32)
    for image in range(n):
        chosen = _kept(boxes[image], kinds[image], overlap, most)
        found[image, : len(chosen), :4] = boxes[image, chosen]
        found[image, : len(chosen), 4] = kinds[image, chosen]
        found[image, : len(chosen), 5] = scores[image, chosen]
    return found


def _kept(boxes: NDArray[Any], kinds: NDArray[Any], overlap: float, most: int) -> NDArray[Any]:
    """Return the indices of the first boxes that no earlier box of their class suppresses."""
    left, top, right, bottom = boxes.T
    areas = (right - left) * (bottom - top)
    waiting = np.arange(len(boxes))
    kept: list[int] = []
    while len(waiting) and len(kept) < most:
        first, others = waiting[0], waiting[1:]
        kept.append(int(first))
        across = np.minimum(right[others], right[first]) - np.maximum(left[others], left[first])
        down = np.minimum(bottom[others], bottom[first]) - np.maximum(top[others], top[first])
        shared = across.clip(0) * down.clip(0)
        union = areas[others] + areas[first] - shared
        waiting = others[(shared <= overlap * union) | (kinds[others] != kinds[first])]
    return np.array(kept, np.int64)
