"""What a published table says about which network a row is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.search_spaces.steps import Assembly, StepTable

__all__ = ["Arrays", "Codes", "TabularSpace", "checked_codes", "integer_matrix", "joined_matrix"]

Arrays = Mapping[str, npt.NDArray[Any]]
Codes = npt.NDArray[np.int64]
"""Networks of shape (N, positions): which option, counted from 0, each has at each position."""

_MATRICES = ("archs", "choice", "ops")
_JOINED = ("ks", "e", "d")


class TabularSpace(Protocol):
    """A space whose networks are rows of small integers."""

    @property
    def name(self) -> str:
        """As ``--space`` takes it."""
        ...

    @property
    def options(self) -> tuple[int, ...]:
        """How many options there are at each position."""
        ...

    @property
    def groups(self) -> tuple[int, ...]:
        """A number for each position; the options of positions with the same one are the same."""
        ...

    def encode(self, arrays: Arrays) -> Codes:
        """Read the networks of a table.

        Raises:
            DataError: The table has no array that describes networks of this space.
        """
        ...

    def connected(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Of shape (N,): whether the output of a network depends on its input."""
        ...

    def canonical(self, codes: Codes) -> Codes:
        """The same networks, with one option wherever it makes no difference which one it is."""
        ...

    def depth(self, codes: Codes) -> npt.NDArray[np.int64] | None:
        """Of shape (N,): layers with weights on the longest path; None where that is not known."""
        ...

    def parts(self, codes: Codes) -> Assembly | None:
        """What the networks are put together of; None where only the integers are known."""
        ...

    def steps(self, codes: Codes) -> StepTable | None:
        """What the networks ask of hardware; None where only the integers are known."""
        ...


def integer_matrix(arrays: Arrays) -> npt.NDArray[np.int64] | None:
    """The first two-dimensional array of integers that describes networks, if there is one."""
    for name in _MATRICES:
        array = arrays.get(name)
        if array is not None and array.ndim == 2 and np.issubdtype(array.dtype, np.integer):
            return array.astype(np.int64)
    return None


def joined_matrix(arrays: Arrays) -> npt.NDArray[np.int64] | None:
    """Kernel sizes, expansions, depths and, if there are any, resolutions, side by side."""
    if not all(name in arrays and arrays[name].ndim == 2 for name in _JOINED):
        return None
    columns = [arrays[name] for name in _JOINED]
    if "r" in arrays:
        columns.append(arrays["r"].reshape(-1, 1))
    if len({len(column) for column in columns}) > 1:
        raise DataError(
            f"ks, e, d and r have {[len(column) for column in columns]} rows; expected as many each"
        )
    return np.hstack(columns).astype(np.int64)


def checked_codes(codes: Codes, space: str, options: Sequence[int]) -> Codes:
    """The same codes, if they are of this many positions and in range.

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
