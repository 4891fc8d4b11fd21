"""Operators over whole axes: products of matrices, softmax, reductions, concatenation, copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    part_of_rows,
)

__all__ = [
    "IntegerConcatenation",
    "IntegerMatrixProduct",
    "IntegerPermutation",
    "IntegerReduction",
    "IntegerSoftmax",
]

_EXP_BITS, _SOFTMAX_BITS = 16, 46


@dataclass(frozen=True, eq=False)
class IntegerMatrixProduct(IntegerOperator):
    """Product of matrices: (N, B, M, K) and (N, B, K, P) -> (N, B, M, P).

    Attributes:
        sizes: B, M, K and P.
        scale: Output steps for each step of a product.
        zeros: Zero points of the inputs and of the output.
    """

    kernel = "multiply_matrices"
    in_place = False
    sizes: tuple[int, int, int, int]
    scale: FixedPoint
    zeros: tuple[int, int, int]

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        number, (batch, rows, inner, columns) = len(inputs[0]), self.sizes
        left = inputs[0].reshape(number, batch, rows, inner).astype(np.float64) - self.zeros[0]
        right = inputs[1].reshape(number, batch, inner, columns).astype(np.float64)
        sums = (left @ (right - self.zeros[1])).astype(np.int64)
        return clipped(self.scale.times(sums) + self.zeros[2])

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return *one_scale(self.scale), *self.zeros, *self.sizes

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        batch, queries, inner, columns = self.sizes
        if rows != batch * queries:
            return None
        reads = (1, inner), (queries, inner * columns)
        return RowPart(replace(self, sizes=(1, 1, inner, columns)), reads)

    @property
    def rows_possible(self) -> int:
        """See `IntegerOperator.rows_possible`."""
        return self.sizes[0] * self.sizes[1]


@dataclass(frozen=True, eq=False)
class IntegerSoftmax(IntegerOperator):
    """Softmax over the last axis: (N, R, C) -> (N, R, C), within one step of the real function.

    Exponentials come from a table of the 256 differences to a row's largest value. A row takes one
    division.

    Attributes:
        exponentials: exp of 0 to -255 steps of the input, times 2 ** 16; uint32.
        inverse: 2 ** 46 over the step of the output.
        zero: Zero point of the output.
        rows: R.
        columns: C, at most 32,768.
    """

    kernel = "softmax"
    in_place = True
    exponentials: NDArray[np.uint32]
    inverse: int
    zero: int
    rows: int
    columns: int

    @classmethod
    def of(
        cls, step: float, output_step: float, zero: int, rows: int, columns: int
    ) -> IntegerSoftmax:
        """Create the operator from the steps of input and output."""
        powers = np.rint(np.exp(-step * np.arange(256)) * 2**_EXP_BITS).astype(np.uint32)
        return cls(powers, round(2**_SOFTMAX_BITS / output_step), zero, rows, columns)

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        values = inputs[0].reshape(-1, self.rows, self.columns).astype(np.int64)
        powers = self.exponentials[values.max(2, keepdims=True) - values].astype(np.int64)
        shares = powers * (self.inverse // powers.sum(2, keepdims=True))
        rounded = (shares + (1 << (_SOFTMAX_BITS - 1))) >> _SOFTMAX_BITS
        return clipped(rounded + self.zero)

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return self.exponentials, self.inverse, self.zero, self.rows, self.columns

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return part_of_rows(self, rows, self.columns)

    @property
    def rows_possible(self) -> int:
        """See `IntegerOperator.rows_possible`."""
        return self.rows


@dataclass(frozen=True, eq=False)
class IntegerReduction(IntegerOperator):
    """Largest value, or mean, over one axis of three: (N, A, B, C) -> (N, A, C).

    Attributes:
        largest: Whether the largest value is taken; the mean otherwise.
        sizes: A, B and C.
        scale: Output steps for each step of a sum, for the mean.
        zeros: Zero points of input and output.
    """

    kernel = "reduce"
    in_place = False
    largest: bool
    sizes: tuple[int, int, int]
    scale: FixedPoint
    zeros: tuple[int, int]

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        values = inputs[0].reshape(-1, *self.sizes).astype(np.int64)
        if self.largest:
            return clipped(values.max(2))
        return clipped(self.scale.times((values - self.zeros[0]).sum(2)) + self.zeros[1])

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return int(self.largest), *one_scale(self.scale), *self.zeros, *self.sizes


@dataclass(frozen=True, eq=False)
class IntegerConcatenation(IntegerOperator):
    """Tensors side by side: (N, R, A), (N, R, B), ... -> (N, R, A + B + ...).

    Attributes:
        rows: R.
        widths: A, B and so on.
        tables: For each input its conversion to the grid of the output, see `IntegerTable`; None if
            it has that grid.
    """

    kernel = "concatenate"
    in_place = False
    rows: int
    widths: tuple[int, ...]
    tables: tuple[Int8 | None, ...]

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        parts = [
            each.astype(np.int8) if table is None else looked_up(table, each)
            for each, table in zip(inputs, self.tables, strict=True)
        ]
        shaped = [part.reshape(len(inputs[0]), self.rows, -1) for part in parts]
        return np.concatenate(shaped, axis=2)

    def constants(self) -> Constants:
        """Return the sizes that all calls share."""
        return self.rows, sum(self.widths)

    def calls(self, places: Sequence[str]) -> Iterator[tuple[Sequence[str], Constants]]:
        """Yield a call for each input."""
        start = 0
        for place, width, table in zip(places[:-1], self.widths, self.tables, strict=True):
            yield [place, places[-1]], (table, start, width, *self.constants())
            start += width

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return part_of_rows(self, rows, *self.widths)

    @property
    def rows_possible(self) -> int:
        """See `IntegerOperator.rows_possible`."""
        return self.rows


@dataclass(frozen=True, eq=False)
class IntegerPermutation(IntegerOperator):
    """Copy of a tensor, or of a part that begins at its first value, in another order.

    Attributes:
        axes: Size of each of four axes of the output, and the step in the input along it.
    """

    kernel = "permute"
    in_place = False
    axes: tuple[tuple[int, int], ...]

    @property
    def places(self) -> NDArray[np.int64]:
        """Place in the input of each value of the output, (n,)."""
        places = np.zeros((1, 1, 1, 1), np.int64)
        for axis, (size, step) in enumerate(self.axes):
            places = places + step * np.arange(size).reshape(-1, *[1] * (3 - axis))
        return places.ravel()

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        sizes = [size for size, _ in self.axes]
        found = inputs[0].reshape(len(inputs[0]), -1)[:, self.places]
        return found.reshape(-1, *sizes).astype(np.int8)

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        sizes, steps = zip(*self.axes, strict=True)
        return *sizes, *steps
