"""Product of matrices of signs by XNOR and a count of bits: 64 multiplications in one.

This is how a processor computes a layer of one bit (Rastegari et al., "XNOR-Net", ECCV 2016,
section 3.3). Sums of signs are whole numbers, so the product has no rounding errors. Positions of
padding are zero, which is no sign, so they are left out by a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["PackedSigns", "xnor_product"]

_WORD_BITS = 64
_WORDS_AT_ONCE = 2**20


@dataclass(frozen=True)
class PackedSigns:
    """Rows of signs, of one bit each.

    Attributes:
        positive: Words of 64 bits, uint64 (N, words): 1 where the sign is positive.
        present: Likewise, 1 where there is a sign, and 0 at zeros and after the end of a row.
    """

    positive: npt.NDArray[np.uint64]
    present: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, signs: npt.ArrayLike) -> PackedSigns:
        """Pack a matrix of signs.

        Args:
            signs: Numbers (N, K): 1, -1, or 0 for padding.

        Raises:
            ValueError: There is another number, or another number of dimensions.
        """
        values = np.asarray(signs)
        if values.ndim != 2 or not np.isin(values, (-1, 0, 1)).all():
            raise ValueError("expected a matrix of -1, 0 and 1")
        return cls(_packed(values > 0), _packed(values != 0))


def xnor_product(left: PackedSigns, right: PackedSigns) -> npt.NDArray[np.int64]:
    """Return the product of a matrix (N, K) and the transpose of another, (M, K).

    Returns:
        Whole numbers (N, M), exactly those of a multiplication.

    Raises:
        ValueError: The rows have different lengths, in words.
    """
    rows, words = left.positive.shape
    if right.positive.shape[1] != words:
        raise ValueError(f"rows of {words} and {right.positive.shape[1]} words do not match")
    product = np.empty((rows, len(right.positive)), dtype=np.int64)
    at_once = max(1, _WORDS_AT_ONCE // max(1, right.positive.size))
    for start in range(0, rows, at_once):
        part = slice(start, start + at_once)
        present = left.present[part, None] & right.present
        differ = (left.positive[part, None] ^ right.positive) & present
        product[part] = _count(present) - 2 * _count(differ)
    return product


def _count(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the number of bits that are 1 in each row of words, (..., words)."""
    return np.asarray(np.bitwise_count(words).sum(-1, dtype=np.int64))


def _packed(bits: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Return rows of bits (N, K) as words, with zeros after their end."""
    rows, length = bits.shape
    whole = np.zeros((rows, -(-length // _WORD_BITS) * _WORD_BITS), dtype=bool)
    whole[:, :length] = bits
    return np.packbits(whole, axis=1).view(np.uint64)
