"""Sorting by NumPy on a CPU, where it is several times as fast as torch, and by torch elsewhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["argsort", "first_of_equals", "grouped"]

_RADIX = 2**16  # most groups for which NumPy uses a radix sort


def argsort(values: Tensor) -> Tensor:
    """Return the indices that sort (N,) numbers; equal numbers keep their order."""
    if values.device.type != "cpu":
        return values.argsort(stable=True)
    array = values.numpy()
    order = np.argsort(array)  # vectorised, several times as fast as the stable sort
    ordered = array[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        _restore(order, same)
    return torch.from_numpy(order)


def _restore(order: npt.NDArray[np.int64], same: npt.NDArray[np.bool_]) -> None:
    """Restore the original order of equal elements, in place.

    Args:
        order: Indices that sort an array, (N,).
        same: Mask of the sorted elements equal to the one before them, (N - 1,).
    """
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] = same
    tied[:-1] |= same
    run = np.zeros(len(order), dtype=np.int64)
    np.cumsum(~same, out=run[1:])
    keys = run[tied] * len(order) + order[tied]
    keys.sort()
    order[tied] = keys % len(order)


def grouped(groups: Tensor, within: Tensor) -> Tensor:
    """Sort the permutation ``within`` stably by group.

    Args:
        groups: Group of each element, integers from 0, (N,).
        within: Permutation of N elements.
    """
    count = int(groups.max()) + 1 if len(groups) else 0
    if count <= 1:
        return within
    found = groups[within]
    if groups.device.type != "cpu":
        return within[found.argsort(stable=True)]
    array = found.numpy()
    if count <= _RADIX:
        array = array.astype(np.uint16)
    return within[torch.from_numpy(np.argsort(array, kind="stable"))]


def first_of_equals(keys: Tensor) -> Tensor:
    """Return a mask of the first occurrence of each of (N,) keys, bool (N,)."""
    order = argsort(keys)
    ordered = keys[order]
    first = torch.ones_like(keys, dtype=torch.bool)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first
