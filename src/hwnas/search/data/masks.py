"""Segmentation masks, which give the class of each pixel of an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError

__all__ = ["VOID", "Masks", "check_masks", "class_counts"]

Masks = npt.NDArray[np.uint8]
"""uint8 (N, H, W): classes from 0, or `VOID`."""

VOID = 255
"""Value of pixels without a class, as in Pascal VOC and Cityscapes; they count neither in training
nor in scoring."""

_BLOCK_BYTES = 2**25


def check_masks(given: npt.NDArray[Any], name: str) -> Masks:
    """Check masks and return them as uint8 (N, H, W), without a copy if they are uint8 already.

    Args:
        given: Integers or booleans (N, H, W) or (N, H, W, 1), in 0..254, or 255 for `VOID`.
        name: Name of the array, for messages.

    Raises:
        DataError: The dtype or shape is wrong, or a value is out of range.
    """
    masks = given[..., 0] if given.ndim == 4 and given.shape[3] == 1 else given
    if masks.ndim != 3 or 0 in masks.shape:
        raise DataError(f"{name} has shape {given.shape}; masks are (N, H, W), one class per pixel")
    if masks.dtype.kind not in "iub":
        raise DataError(
            f"{name} is {masks.dtype} with shape {given.shape}; masks are integers, class 0 to "
            f"number of classes - 1, or {VOID} where a pixel has no class. Round or threshold them"
        )
    if masks.dtype == np.uint8:
        return masks
    low, high = int(masks.min()), int(masks.max())
    if low < 0 or high > VOID:
        raise DataError(
            f"{name} goes from {low} to {high}; the classes of masks are 0 to {VOID - 1}, and "
            f"{VOID} marks pixels without a class"
        )
    return masks.astype(np.uint8)


def class_counts(masks: Masks, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of pixels with each value in some masks: int64 (256,)."""
    counts = np.zeros(VOID + 1, np.int64)
    for block in _blocks(masks, rows):
        counts += np.bincount(block.reshape(-1), minlength=VOID + 1)
    return counts


def _blocks(masks: Masks, rows: npt.NDArray[np.int64]) -> Iterator[Masks]:
    """Yield the masks of some rows in blocks, in file order, since they may be memory-mapped."""
    size = max(1, _BLOCK_BYTES // max(1, masks[0].nbytes))
    ordered = np.sort(rows)
    for start in range(0, len(ordered), size):
        yield masks[ordered[start : start + size]]
