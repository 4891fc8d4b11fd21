"""Space of tables whose integers have no known meaning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.search_spaces.tabular.table import (
    Arrays,
    Codes,
    checked_codes,
    integer_matrix,
    joined_matrix,
)

__all__ = ["CategoricalSpace"]


@dataclass(frozen=True)
class CategoricalSpace:
    """Space of rows of integers without a known meaning; equal integers mean the same.

    Attributes:
        least: Smallest integer at each position.
        options: Number of integers at each position.
        name: Name for ``--space``.
    """

    least: tuple[int, ...]
    options: tuple[int, ...]
    name: str = "categorical"

    @classmethod
    def of(cls, arrays: Arrays) -> CategoricalSpace:
        """Return the space of the integers that a table has at each position."""
        matrix = _matrix(arrays)
        least, most = matrix.min(axis=0), matrix.max(axis=0)
        return cls(tuple(map(int, least)), tuple(map(int, most - least + 1)))

    @property
    def groups(self) -> tuple[int, ...]:
        """Group of each position; positions with the same range of integers have the same group."""
        ranges = list(zip(self.least, self.options, strict=True))
        return tuple(ranges.index(each) for each in ranges)

    def encode(self, arrays: Arrays) -> Codes:
        """Read the first of ``archs``, ``choice``, ``ops`` or ``ks`` + ``e`` + ``d`` (+ ``r``)."""
        matrix = _matrix(arrays)
        if matrix.shape[1] != len(self.least):
            raise DataError(
                f"the table has {matrix.shape[1]} columns; expected {len(self.least)} positions"
            )
        return checked_codes(matrix - np.array(self.least), self.name, self.options)

    def connected(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return True for all networks, since it is not known."""
        return np.ones(len(codes), dtype=bool)

    def canonical(self, codes: Codes) -> Codes:
        """Return the codes unchanged."""
        return codes

    def depth(self, codes: Codes) -> None:
        """Return None, since it is not known."""
        return

    def parts(self, codes: Codes) -> None:
        """Return None, since they are not known."""
        return

    def steps(self, codes: Codes) -> None:
        """Return None, since they are not known."""
        return


def _matrix(arrays: Arrays) -> npt.NDArray[np.int64]:
    matrix = integer_matrix(arrays)
    if matrix is None:
        matrix = joined_matrix(arrays)
    if matrix is None or not len(matrix):
        raise DataError(
            "the table has no encoding of its networks; expected integers of two dimensions in "
            f"archs, choice or ops, or ks with e and d; it has {', '.join(sorted(arrays))}"
        )
    return matrix
