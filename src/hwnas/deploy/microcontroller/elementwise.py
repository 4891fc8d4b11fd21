"""Operators on single values: tables, sums and products."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.fixed_point import FixedPoint, clipped
from hwnas.deploy.microcontroller.operator import (
    Constants,
    Int8,
    IntegerOperator,
    RowPart,
    looked_up,
    one_scale,
    part_of_values,
)

__all__ = ["IntegerAddition", "IntegerProduct", "IntegerTable", "PixelTable"]


@dataclass(frozen=True, eq=False)
class IntegerTable(IntegerOperator):
    """Function of single values, as a table of all 256 of them.

    Attributes:
        values: Outputs of -128 to 127.
        size: Number of values of a tensor.
    """

    kernel = "table"
    in_place = True
    values: Int8
    size: int

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        return looked_up(self.values, inputs[0])

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return self.values, self.size

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return part_of_values(self, rows)


@dataclass(frozen=True, eq=False)
class PixelTable(IntegerOperator):
    """Preprocessing and quantisation of pixels, uint8 (N, H, W, C).

    Attributes:
        values: Outputs of pixels 0 to 255 of each channel, (C, 256).
        size: Number of values of an image.
    """

    kernel = "pixels"
    in_place = True
    values: Int8
    size: int

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        found: Int8 = self.values[np.arange(len(self.values)), inputs[0]]
        return found

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return self.values, self.size, len(self.values)

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return part_of_values(self, rows)


@dataclass(frozen=True, eq=False)
class IntegerAddition(IntegerOperator):
    """Sum of two tensors; the second one is repeated.

    Attributes:
        multipliers: Output steps for each step of an input, times 2 ** shift.
        shift: Shift of both.
        zeros: Zero points of the inputs and of the output.
        size: Number of values of the first tensor.
        period: Number of values of the second one.
    """

    kernel = "add"
    in_place = True
    multipliers: tuple[int, int]
    shift: int
    zeros: tuple[int, int, int]
    size: int
    period: int

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        first, second = _repeated(self.size, self.period, *inputs)
        sums = (first - self.zeros[0]) * self.multipliers[0]
        sums = sums + (second - self.zeros[1]) * self.multipliers[1]
        half = (1 << self.shift) >> 1
        return clipped(((sums + half) >> self.shift) + self.zeros[2])

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return *self.multipliers, self.shift, *self.zeros, self.size, self.period

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return _part_of_pair(self, rows)

    @property
    def rows_possible(self) -> int:
        """See `IntegerOperator.rows_possible`."""
        return self.size // self.period


@dataclass(frozen=True, eq=False)
class IntegerProduct(IntegerOperator):
    """Product of two tensors, value by value; the second one is repeated.

    Attributes:
        scale: Output steps for each step of a product.
        zeros: Zero points of the inputs and of the output.
        size: Number of values of the first tensor.
        period: Number of values of the second one.
    """

    kernel = "multiply"
    in_place = True
    scale: FixedPoint
    zeros: tuple[int, int, int]
    size: int
    period: int

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        first, second = _repeated(self.size, self.period, *inputs)
        products = (first - self.zeros[0]) * (second - self.zeros[1])
        return clipped(self.scale.times(products) + self.zeros[2])

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return *one_scale(self.scale), *self.zeros, self.size, self.period

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return _part_of_pair(self, rows)

    @property
    def rows_possible(self) -> int:
        """See `IntegerOperator.rows_possible`."""
        return self.size // self.period


def _part_of_pair(operator: IntegerAddition | IntegerProduct, rows: int) -> RowPart | None:
    """Return the part of an operator of two tensors; a shorter second one repeats in each row."""
    if operator.size % rows:
        return None
    width, period = operator.size // rows, operator.period
    if period == operator.size:
        return RowPart(replace(operator, size=width, period=width), ((1, width), (1, width)))
    if width % period:
        return None
    return RowPart(replace(operator, size=width), ((1, width), (1, 0)))


def _repeated(
    size: int, period: int, first: NDArray[np.integer], second: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return both inputs as int64 (N, size / period, period) and (N or 1, ..., period)."""
    number = len(second)
    return (
        first.reshape(-1, size // period, period).astype(np.int64),
        second.reshape(number, -1, period).astype(np.int64),
    )
