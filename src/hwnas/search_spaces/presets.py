"""Preset configurations by name, and the options of a recipe that replace their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from hwnas.plugin import resolve
from hwnas.search_spaces.configured_space import Configuration

__all__ = ["changed", "preset_for", "sevenths", "sevenths_of"]

C = TypeVar("C", bound=Configuration)
T = TypeVar("T")

_TINY_SIDE, _SMALL_SIDE = 16, 96  # largest sides of images for these presets, in pixels


def preset_for(
    space: str,
    preset: str | None,
    image_shape: tuple[int, int, int],
    known: Mapping[str, T],
    large: str = "large",
) -> T:
    """Return a preset by its name, or the preset for an image size.

    Args:
        space: Name of the space, for messages.
        preset: Name of the preset. If None: ``"tiny"`` for images up to 16 pixels, ``"small"`` up
            to 96, and ``large`` above.
        image_shape: Height, width and channels.
        known: All presets, by name.
        large: Name of the preset for larger images.

    Raises:
        ConfigError: The name is unknown.
    """
    side = max(image_shape[:2])
    automatic = "tiny" if side <= _TINY_SIDE else "small" if side <= _SMALL_SIDE else large
    return resolve(f"preset of space {space}", preset or automatic, known)


def changed(config: C, **options: Any) -> C:
    """Return the configuration with the given options replaced; an option of None is not given."""
    given = {name: value for name, value in options.items() if value is not None}
    return dataclasses.replace(config, **given)


def sevenths(image_shape: tuple[int, int, int], *parts: int) -> tuple[int, ...]:
    """Return options for the side of the input, as sevenths of the longer side of the images."""
    side = max(image_shape[:2])
    return tuple(sorted({max(1, side * part // 7) for part in parts}))


def sevenths_of(image_shape: tuple[int, int, int], unit: int, *parts: int) -> tuple[int, ...]:
    """Return `sevenths`, rounded up to whole units unless below one unit."""
    sides = sevenths(image_shape, *parts)
    return tuple(sorted({side if side < unit else -(-side // unit) * unit for side in sides}))
