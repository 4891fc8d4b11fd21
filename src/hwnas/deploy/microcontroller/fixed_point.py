"""Multiplication by real numbers in integers: a multiplier and a shift."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FixedPoint", "clipped", "fixed_point"]

_BITS = 31
_LEAST_SHIFT, _MOST_SHIFT = 1, 62
_LEAST, _MOST = -128, 127


class FixedPoint:
    """Real numbers as ``multiplier * 2 ** -shift`` (Jacob et al., CVPR 2018, section 2.2).

    The product with a 32-bit integer fits into 64 bits. Ties are rounded up.

    Attributes:
        multiplier: int32, of 31 bits; 0 for numbers below 2 ** -62.
        shift: int8, from 1 to 62.

    Args:
        values: Real numbers from 0 to 2 ** 30.
    """

    def __init__(self, values: NDArray[np.float64]) -> None:
        fractions, exponents = np.frexp(np.atleast_1d(values))
        multipliers = np.rint(fractions * 2**_BITS).astype(np.int64)
        shifts = _BITS - exponents.astype(np.int64)
        carried = multipliers == 2**_BITS
        multipliers, shifts = np.where(carried, 2 ** (_BITS - 1), multipliers), shifts - carried
        tiny = shifts > _MOST_SHIFT
        self.multiplier = np.where(tiny, 0, multipliers).astype(np.int32)
        self.shift = np.clip(shifts, _LEAST_SHIFT, _MOST_SHIFT).astype(np.int8)

    def times(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rounded products with integers (..., C), or (...) if there is one number."""
        shift = self.shift.astype(np.int64)
        product = sums * self.multiplier.astype(np.int64)
        rounded: NDArray[np.int64] = (product + (np.int64(1) << (shift - 1))) >> shift
        return rounded


def fixed_point(value: float, bits: int) -> tuple[int, int]:
    """Return a multiplier of at most ``bits`` bits, and a shift of at most 30, for one number."""
    exponent = math.frexp(value)[1] if value else 0
    shift = min(max(bits - exponent, 0), _BITS - 1)
    return round(value * 2**shift), shift


def clipped(values: NDArray[Any]) -> NDArray[np.int8]:
    """Return integers as int8, those out of range as the nearest in range."""
    limited: NDArray[np.int8] = np.clip(values, _LEAST, _MOST).astype(np.int8)
    return limited
