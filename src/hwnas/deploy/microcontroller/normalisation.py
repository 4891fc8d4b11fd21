"""Normalisations by mean and variance, with an integer square root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.fixed_point import clipped
from hwnas.deploy.microcontroller.operator import (
    Constants,
    Int8,
    IntegerOperator,
    RowPart,
    part_of_rows,
)

__all__ = ["IntegerGroupNorm", "IntegerLayerNorm"]

_INVERSE_BITS, _ROOT_BITS, _NORM_BITS, _GAMMA_BITS = 46, 12, 16, 12
_BITS = 62  # of what a root is taken of


@dataclass(frozen=True, eq=False)
class IntegerLayerNorm(IntegerOperator):
    """Layer normalisation over the last axis: (N, R, C) -> (N, R, C).

    With the sum s of the values q, and t of their squares, a normalised value is C q - s over the
    square root of C t - s^2 + e, which is an integer with 12 bits after the point.

    Attributes:
        gamma: Factors in output steps, times 2 ** 12; int32 (C,).
        beta: Offsets in output steps, times 2 ** 12; int32 (C,).
        epsilon: e: C^2 times the epsilon of the layer, in squared steps of the input.
        zero: Zero point of the output.
        rows: R.
    """

    WIDEST: ClassVar[int] = 1024
    kernel = "normalise"
    in_place = True
    gamma: NDArray[np.int32]
    beta: NDArray[np.int32]
    epsilon: int
    zero: int
    rows: int

    @classmethod
    def of(
        cls,
        gamma: NDArray[np.float64],
        beta: NDArray[np.float64],
        epsilon: int,
        zero: int,
        rows: int,
    ) -> IntegerLayerNorm:
        """Create the operator from factors and offsets in output steps."""
        return cls(_fixed(gamma), _fixed(beta), epsilon, zero, rows)

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        values = inputs[0].reshape(-1, self.rows, len(self.gamma))
        normalised = _normalised(values, self.epsilon, _ROOT_BITS)
        return _scaled(normalised, self.gamma, self.beta, self.zero)

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        return self.gamma, self.beta, self.epsilon, self.zero, self.rows, len(self.gamma)

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return part_of_rows(self, rows, len(self.gamma))

    @property
    def rows_possible(self) -> int:
        """See `IntegerOperator.rows_possible`."""
        return self.rows


@dataclass(frozen=True, eq=False)
class IntegerGroupNorm(IntegerOperator):
    """Normalisation of each group by its own mean and variance: (N, G, D) -> (N, G, D).

    The formula is that of `IntegerLayerNorm`. The square root has fewer bits after the point, since
    the variance of more values takes more bits before it.

    Attributes:
        gamma: Factor of each group in output steps, times 2 ** 12; int32 (G,).
        beta: Offset of each group in output steps, times 2 ** 12; int32 (G,).
        epsilon: D^2 times the epsilon of the layer, in squared steps of the input; at most four
            times the largest variance.
        zero: Zero point of the output.
        width: D, at most 65,536.
    """

    WIDEST: ClassVar[int] = 2**16
    kernel = "normalise_groups"
    in_place = True
    gamma: NDArray[np.int32]
    beta: NDArray[np.int32]
    epsilon: int
    zero: int
    width: int

    @classmethod
    def of(
        cls,
        gamma: NDArray[np.float64],
        beta: NDArray[np.float64],
        epsilon: int,
        zero: int,
        width: int,
    ) -> IntegerGroupNorm:
        """Create the operator from factors and offsets in output steps."""
        return cls(_fixed(gamma), _fixed(beta), epsilon, zero, width)

    @property
    def root_bits(self) -> int:
        """Number of bits after the point of the square root, from 6 to 12."""
        largest = 5 * self.width**2 * 2**14  # the variance and epsilon
        return min(_ROOT_BITS, (_BITS - largest.bit_length()) // 2)

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        values = inputs[0].reshape(-1, len(self.gamma), self.width)
        normalised = _normalised(values, self.epsilon, self.root_bits)
        return _scaled(normalised, self.gamma[:, None], self.beta[:, None], self.zero)

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        numbers = self.epsilon, self.zero, self.root_bits, len(self.gamma), self.width
        return self.gamma, self.beta, *numbers


def _fixed(values: NDArray[np.float64]) -> NDArray[np.int32]:
    """Return real numbers with bits after the point, as integers."""
    found: NDArray[np.int32] = np.rint(values * 2**_GAMMA_BITS).astype(np.int32)
    return found


def _normalised(values: NDArray[np.integer], epsilon: int, root_bits: int) -> NDArray[np.int64]:
    """Return normalised values with 16 bits after the point, over the last axis of three."""
    width, whole = values.shape[2], values.astype(np.int64)
    sums = whole.sum(2, keepdims=True)
    spread = width * np.square(whole).sum(2, keepdims=True) - sums**2 + epsilon
    inverse = (np.int64(1) << _INVERSE_BITS) // _roots(spread << (2 * root_bits))
    shift = _INVERSE_BITS - root_bits - _NORM_BITS
    found: NDArray[np.int64] = (whole * width - sums) * inverse >> shift
    return found


def _scaled(
    normalised: NDArray[np.int64], gamma: NDArray[np.int32], beta: NDArray[np.int32], zero: int
) -> Int8:
    """Return outputs of normalised values, factors and offsets."""
    whole = normalised * gamma + (beta.astype(np.int64) << _NORM_BITS)
    shift = _NORM_BITS + _GAMMA_BITS
    return clipped(((whole + (1 << (shift - 1))) >> shift) + zero)


def _roots(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the integer square roots, rounded down, of values below 2 ** 62."""
    roots = np.sqrt(values.astype(np.float64)).astype(np.int64)
    roots = roots - (roots**2 > values)
    return roots + ((roots + 1) ** 2 <= values)
