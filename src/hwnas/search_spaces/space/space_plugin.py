"""Descriptor of a search space as a plug-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hwnas.registry import Plugin
from hwnas.search_spaces.space.search_space import SearchSpace

__all__ = ["DIGITS", "LARGE", "SMALL", "SpacePlugin"]

DIGITS, SMALL, LARGE = (8, 8, 1), (32, 32, 3), (224, 224, 3)
"""Image shapes of examples: height, width and channels."""


@dataclass(frozen=True)
class SpacePlugin(Plugin[Callable[..., SearchSpace]]):
    """Descriptor of a search space.

    Attributes:
        examples: Image shape (height, width, channels) for which each preset is listed, by preset;
            ``""`` stands for a space without presets. Empty if the size of the space depends on the
            user's model.
    """

    examples: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
