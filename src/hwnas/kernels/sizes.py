"""Sizes and types of operators as text, to be read from a command and shown to users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from hwnas.errors import ConfigError

__all__ = ["dtype_name", "dtype_read", "sizes_read", "sizes_text"]

_MOST = 2**31 - 1  # most that kernels can index with 32 bits


class Sized(Protocol):
    """Part of an operator that says which types and sizes it takes."""

    @property
    def name(self) -> str:
        """Name of the operator."""

    @property
    def dtypes(self) -> Sequence[torch.dtype]:
        """Types of its first input."""

    @property
    def checked(self) -> Sequence[Mapping[str, int]]:
        """Sizes that its tests use; an optional input has size 0 in some of them."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return a name such as ``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def dtype_read(operator: Sized, name: str, called: str = "") -> torch.dtype:
    """Return the type of a name from `dtype_name`, if an operator takes it.

    Args:
        operator: Operator that has to take the type.
        name: Name of the type.
        called: Name of the operator in the message, if not its own.

    Raises:
        ConfigError: The operator does not take the type; the message lists the types that it takes.
    """
    taken = {dtype_name(dtype): dtype for dtype in operator.dtypes}
    if name not in taken:
        raise ConfigError(
            f"{called or operator.name} does not take {name!r}; it takes {', '.join(taken)}"
        )
    return taken[name]


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return a text such as ``images=1,pixels=196``."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def sizes_read(operator: Sized, text: str) -> dict[str, int]:
    """Return the sizes of an operator from a text of `sizes_text`, in any order.

    Sizes of optional inputs are 0 if they are not given.

    Raises:
        ConfigError: A size is missing, unknown, not a number or out of range.
    """
    checked = operator.checked[0]
    least = {name: min(sizes[name] for sizes in operator.checked) for name in checked}
    given: dict[str, int] = {name: 0 for name in checked if not least[name]}
    try:
        given |= {
            name.strip(): int(value) for name, value in (p.split("=") for p in text.split(","))
        }
    except ValueError:
        raise ConfigError(f"sizes {text!r} are not of the form {sizes_text(checked)}") from None
    wrong = set(given) ^ set(checked) or {
        name for name, size in given.items() if not min(least[name], 1) <= size <= _MOST
    }
    if wrong:
        raise ConfigError(
            f"sizes {text!r} of {operator.name}: {', '.join(sorted(wrong))} is missing, unknown "
            f"or out of range; expected the form {sizes_text(checked)}"
        )
    return {name: given[name] for name in checked}
