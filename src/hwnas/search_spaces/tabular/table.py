"""Interface of spaces whose networks are rows of a published table, and parsing of their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.search_spaces.cost_model.operator_counts import Assembly, OperatorCountTable

__all__ = ["Arrays", "Codes", "TabularSpace", "checked_codes", "integer_matrix", "joined_matrix"]

Arrays = Mapping[str, npt.NDArray[Any]]
Codes = npt.NDArray[np.int64]
"""Index of each network's option at each position, from 0, of shape (N, positions)."""

_MATRICES = ("archs", "choice", "ops")
_JOINED = ("ks", "e", "d")


class TabularSpace(Protocol):
    """Space whose networks are rows of small integers."""

    @property
    def name(self) -> str:
        """Name for ``--space``."""
        ...

    @property
    def options(self) -> tuple[int, ...]:
        """Number of options at each position."""
        ...

    @property
    def groups(self) -> tuple[int, ...]:
        """Number of the group of each position; positions of one group have the same options."""
        ...

    def encode(self, arrays: Arrays) -> Codes:
        """Read the networks of a table.

        Raises:
            DataError: The table has no array that describes networks of this space.
        """
        ...

    def connected(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return whether the output of each network depends on its input, of shape (N,)."""
        ...

    def canonical(self, codes: Codes) -> Codes:
        """Return equivalent networks with one fixed option wherever the option has no effect."""
        ...

    def depth(self, codes: Codes) -> npt.NDArray[np.int64] | None:
        """Return the number of layers with weights on the longest path, (N,); None if not known."""
        ...

    def parts(self, codes: Codes) -> Assembly | None:
        """Return the parts of the networks; None if only the integers are known."""
        ...

    def steps(self, codes: Codes) -> OperatorCountTable | None:
        """Return the operator counts of the networks; None if only the integers are known."""
        ...


def integer_matrix(arrays: Arrays) -> npt.NDArray[np.int64] | None:
    """Return the first two-dimensional array of integers that describes networks, if any."""
    for name in _MATRICES:
        array = arrays.get(name)
        if array is not None and array.ndim == 2 and np.issubdtype(array.dtype, np.integer):
            return array.astype(np.int64)
    return None


def joined_matrix(arrays: Arrays) -> npt.NDArray[np.int64] | None:
    """Return kernel sizes, expansions, depths and, if present, resolutions as columns, or None."""
    if not all(name in arrays and arrays[name].ndim == 2 for name in _JOINED):
        return None
    columns = [arrays[name] for name in _JOINED]
    if "r" in arrays:
        columns.append(arrays["r"].reshape(-1, 1))
    if len({len(column) for column in columns}) > 1:
        raise DataError(
            f"ks, e, d and r have {[len(column) for column in columns]} rows; expected equal "
            "numbers"
        )
    return np.hstack(columns).astype(np.int64)


def checked_codes(codes: Codes, space: str, options: Sequence[int]) -> Codes:
    """Return the codes, if their number of positions is right and all are in range.

    Raises:
        DataError: They are not; the message names the first wrong row.
    """
    if codes.ndim != 2 or codes.shape[1] != len(options):
        raise DataError(
            f"networks of {space} have {len(options)} positions; the table has "
            f"{codes.shape[1] if codes.ndim == 2 else 'no'} columns"
        )
    wrong = np.argwhere((codes < 0) | (codes >= np.array(options)))
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            f"row {row} has {codes[row, column]} at position {column} of {space}; expected 0 to "
            f"{options[column] - 1}"
        )
    return codes
