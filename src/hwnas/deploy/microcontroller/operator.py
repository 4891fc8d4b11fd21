"""Interface of the operators of integer networks: int8 tensors in, int8 tensors out, integers only.

Each class defines one operator twice: in NumPy, and by the arguments of its kernel in C. Both
give the same bits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.fixed_point import FixedPoint

__all__ = [
    "Constants",
    "Int8",
    "IntegerOperator",
    "RowPart",
    "looked_up",
    "one_scale",
    "part_of_rows",
    "part_of_values",
]

Int8 = NDArray[np.int8]
Constants = tuple[NDArray[np.integer] | int | None, ...]
"""Arguments of a kernel after its tensors: arrays in flash, numbers, or a missing array."""


class IntegerOperator(Protocol):
    """Operator of an integer network; batches are in front of the stored shapes.

    Attributes:
        kernel: Name of the function in C.
        in_place: Whether the output may stand where the first input stands, if both have one size.
    """

    kernel: ClassVar[str]
    in_place: ClassVar[bool]

    @abstractmethod
    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """Return the output (N, ...) of int8 inputs (N, ...)."""

    @abstractmethod
    def constants(self) -> Constants:
        """Return the arguments of the kernel after its inputs and its output."""

    def calls(self, places: Sequence[str]) -> Iterator[tuple[Sequence[str], Constants]]:
        """Yield the arguments of each call of the kernel, given where inputs and output are."""
        yield places, self.constants()

    def part(self, rows: int) -> RowPart | None:
        """Return what computes one of ``rows`` equal parts of the output; None if nothing can."""
        return None

    @property
    def rows_possible(self) -> int:
        """Largest number of parts of the output that can be computed one by one."""
        return 1


@dataclass(frozen=True, eq=False)
class RowPart:
    """Operator that computes one row of an output.

    Attributes:
        operator: Operator for one row.
        reads: For each input, n and b: row r of the output reads it from byte ``r // n * b`` on.
    """

    operator: IntegerOperator
    reads: tuple[tuple[int, int], ...]


def looked_up(table: Int8, values: NDArray[np.integer]) -> Int8:
    """Return the entries of a table of -128 to 127."""
    found: Int8 = table[values.astype(np.int64) + 128]
    return found


def one_scale(scale: FixedPoint) -> tuple[int, int]:
    """Return the arguments of a kernel for a scale of one number."""
    return int(scale.multiplier[0]), int(scale.shift[0])


def part_of_values(operator: Any, rows: int) -> RowPart | None:
    """Return one row of an operator on ``size`` single values, as `IntegerOperator.part` does."""
    if operator.size % rows:
        return None
    width = operator.size // rows
    return RowPart(replace(operator, size=width), ((1, width),))


def part_of_rows(operator: Any, rows: int, *widths: int) -> RowPart | None:
    """Return one row of an operator on ``rows`` vectors, as `IntegerOperator.part` does.

    Args:
        operator: Operator, a dataclass with the attribute ``rows``.
        rows: Number of parts.
        widths: Length of the vectors of each input.
    """
    if operator.rows % rows:
        return None
    each = operator.rows // rows
    return RowPart(replace(operator, rows=each), tuple((1, each * width) for width in widths))
