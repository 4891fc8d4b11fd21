"""What networks are put together of: places, and the modules that may stand there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

__all__ = ["Key", "Place", "Values"]

Values = Mapping[str, Any]
"""For every choice the option, with nothing (None) where it has no effect, and what follows."""

Key = tuple[Any, ...]
"""All that a module depends on; hashable."""


@dataclass(frozen=True)
class Place:
    """Where in the networks of a space a module stands, and what decides which.

    Attributes:
        name: Of the submodule, e.g. ``"stages.0.1"``.
        make: Makes the module, freshly initialised, given ``decided_by`` and nothing else.
        decided_by: For each argument of ``make`` the name of the value that it is.
        depth: Name of the value that says how many places of a row are taken; empty where this
            one always is.
        position: How many of them there have to be.
    """

    name: str
    make: Callable[..., nn.Module]
    decided_by: Mapping[str, str] = field(default_factory=dict)
    depth: str = ""
    position: int = 1

    def taken(self, values: Values) -> bool:
        """Whether anything stands here."""
        return not self.depth or bool(values[self.depth] >= self.position)

    def key(self, values: Values) -> Key:
        """What the module depends on; equal keys are equal modules."""
        return tuple([values[name] for name in self.decided_by.values()])

    def module(self, key: Key) -> nn.Module:
        """The module of a key, freshly initialised."""
        return self.make(**dict(zip(self.decided_by, key, strict=True)))
