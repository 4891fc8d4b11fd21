"""Boxes around the objects of an image, as targets of detection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError

__all__ = [
    "BOX_NUMBERS",
    "NO_BOX",
    "Boxes",
    "box_classes",
    "check_boxes",
    "cropped_boxes",
    "mirrored_boxes",
    "padded_boxes",
]

Boxes = npt.NDArray[np.float32]
"""float32 (N, M, 5): for each of up to M objects of an image, left, top, right and bottom as shares
of the image's width and height, in [0, 1], and the class, from 0; rows without object have the
class `NO_BOX`."""

BOX_NUMBERS = 5
NO_BOX = -1


def check_boxes(given: npt.NDArray[Any], name: str) -> Boxes:
    """Check boxes and return them as float32 (N, M, 5).

    Args:
        given: Floats (N, M, 5); see `Boxes`.
        name: Name of the array, for messages.

    Raises:
        DataError: A class is no whole number from 0 (or `NO_BOX`), or a box is empty or outside of
            the image.
    """
    boxes = given.astype(np.float32)
    classes = boxes[..., 4]
    odd = np.argwhere(~((classes >= NO_BOX) & (np.floor(classes) == classes)))
    if len(odd):
        image, row = odd[0]
        raise DataError(
            f"{name}[{image}, {row}] has the class {classes[image, row]:g}; expected a whole "
            f"number from 0, or {NO_BOX} in a row without object"
        )
    left, top, right, bottom = np.moveaxis(boxes[..., :4], -1, 0)
    inside = (left >= 0) & (top >= 0) & (right <= 1) & (bottom <= 1)
    wrong = np.argwhere((classes != NO_BOX) & ~(inside & (left < right) & (top < bottom)))
    if len(wrong):
        image, row = wrong[0]
        raise DataError(
            f"{name}[{image}, {row}] is {boxes[image, row].tolist()}; expected left < right and "
            "top < bottom from 0 to 1, and the class. Divide pixels by the image's width and height"
        )
    return boxes


def padded_boxes(boxes: Sequence[Sequence[Sequence[float]]]) -> Boxes:
    """Return the boxes of all images as one array, with rows of class `NO_BOX` as padding.

    Args:
        boxes: For each image, the five numbers of each object.
    """
    most = max(1, max(map(len, boxes), default=1))
    found = np.zeros((len(boxes), most, BOX_NUMBERS), np.float32)
    found[..., 4] = NO_BOX
    for row, each in zip(found, boxes, strict=True):
        if each:
            row[: len(each)] = each
    return found


def box_classes(boxes: Boxes, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the distinct classes of the objects of some images, sorted."""
    found: npt.NDArray[np.int64] = np.unique(boxes[rows, :, 4]).astype(np.int64)
    classes: npt.NDArray[np.int64] = found[found != NO_BOX]
    return classes


def cropped_boxes(boxes: Boxes, places: npt.NDArray[np.int64], size: tuple[int, int]) -> Boxes:
    """Return the boxes in a part of each image; those whose centre is outside of it are left out.

    Args:
        boxes: Boxes (N, M, 5).
        places: Top, left, height and width of each part in pixels, (N, 4); it may stick out.
        size: Height and width of the images, in pixels.
    """
    top, left, height, width = places.T[:, :, None].astype(np.float32)
    found = boxes.copy()
    for low, high, start, length, side in (
        (0, 2, left, width, size[1]),
        (1, 3, top, height, size[0]),
    ):
        found[..., low] = (boxes[..., low] * side - start) / length
        found[..., high] = (boxes[..., high] * side - start) / length
    centres = (found[..., :2] + found[..., 2:4]) / 2
    found[..., :4] = found[..., :4].clip(0, 1)
    found[((centres < 0) | (centres > 1)).any(axis=2), 4] = NO_BOX
    return found


def mirrored_boxes(boxes: Boxes) -> Boxes:
    """Return the boxes of horizontally flipped images."""
    found = boxes.copy()
    found[..., 0], found[..., 2] = 1 - boxes[..., 2], 1 - boxes[..., 0]
    return found
