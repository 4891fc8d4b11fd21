"""Tensors of an ONNX file, as int8 tensors in memory: their grids and their orders of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.fixed_point import clipped

__all__ = [
    "EVERY_INT8",
    "IntegerGrid",
    "OnnxValue",
    "QuantisedConstant",
    "map_order",
    "stored_index",
    "strides_of",
]

EVERY_INT8 = np.arange(-128, 128)


@dataclass(frozen=True)
class IntegerGrid:
    """Real numbers that int8 values q stand for: ``scale * (q - zero)``.

    Attributes:
        scale: Real number that one step stands for.
        zero: Zero point.
    """

    scale: float
    zero: int

    def real(self, values: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the real numbers that integers stand for."""
        return np.float32(self.scale) * (values.astype(np.float32) - np.float32(self.zero))

    def nearest(self, values: NDArray[np.float32]) -> NDArray[np.int8]:
        """Return the nearest integers, as ONNX's QuantizeLinear does."""
        return clipped(np.rint(values / np.float32(self.scale)) + self.zero)


@dataclass(frozen=True, eq=False)
class QuantisedConstant:
    """Constant as integers, with the scale of each.

    Attributes:
        values: Integers, less their zero points.
        scale: Scales, of a shape that broadcasts to that of the values.
    """

    values: NDArray[np.int64]
    scale: NDArray[np.float64]

    @property
    def real(self) -> NDArray[np.float64]:
        """Real numbers that the integers stand for."""
        return self.values * self.scale


@dataclass(frozen=True, eq=False)
class OnnxValue:
    """Tensor of the ONNX file for one image.

    Attributes:
        tensor: Number of the int8 tensor.
        shape: Shape in the ONNX file.
        order: Axes of ``shape`` in the order in which they are stored.
    """

    tensor: int
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape as stored."""
        return tuple(self.shape[axis] for axis in self.order)

    @property
    def last_is_last(self) -> bool:
        """True if the last axis is stored last."""
        return self.order[-1] == len(self.shape) - 1

    def same_layout(self, other: OnnxValue) -> bool:
        """Return whether another tensor has the same shape and order."""
        return self.shape == other.shape and self.order == other.order

    def of_rank(self, rank: int) -> OnnxValue:
        """Return the same tensor with axes of size 1 in front."""
        lead = rank - len(self.shape)
        order = (*range(lead), *(axis + lead for axis in self.order))
        return OnnxValue(self.tensor, (1,) * lead + self.shape, order)


def map_order(rank: int = 4) -> tuple[int, ...]:
    """Return the order of axes that stores channels last: N, H, W, C for N, C, H, W."""
    return 0, *range(2, rank), 1


def stored_index(value: OnnxValue) -> NDArray[np.int64]:
    """Return the place of each number of a tensor in memory, in the shape of the ONNX file."""
    places = np.arange(math.prod(value.shape)).reshape(value.stored)
    return places.transpose(np.argsort(value.order))


def strides_of(places: NDArray[np.int64]) -> list[tuple[int, int]] | None:
    """Return places in memory as sizes and strides of axes, the last axis last.

    Args:
        places: Places in the order in which they are read, (n,).

    Returns:
        As few axes as possible, or None if no axes give these places.
    """
    axes: list[tuple[int, int]] = []
    while len(places) > 1:
        step = int(places[1] - places[0])
        breaks = np.flatnonzero(np.diff(places) != step)
        run = int(breaks[0]) + 1 if len(breaks) else len(places)
        starts = places[::run]
        if (
            len(places) % run
            or (places.reshape(-1, run) - starts[:, None] != step * np.arange(run)).any()
        ):
            return None
        axes.insert(0, (run, step))
        places = starts
    return axes
