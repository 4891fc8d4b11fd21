"""Heights and widths of inputs and of feature maps, in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["SQUARE", "Size", "aspect_of", "input_size", "map_sizes", "whole_units"]

Size = tuple[int, int]
"""Height and width."""

SQUARE: Size = (1, 1)
"""Aspect ratio of square inputs."""


def aspect_of(image_shape: tuple[int, int, int]) -> Size:
    """Return the aspect ratio of images, height to width, in smallest terms.

    Args:
        image_shape: Height, width and channels.
    """
    height, width, _ = image_shape
    common = math.gcd(height, width)
    return height // common, width // common


def input_size(resolution: int, aspect: Size) -> Size:
    """Return the size of inputs whose longer side has so many pixels; each side has one or more."""
    longer = max(aspect)
    height, width = (max(1, round(resolution * part / longer)) for part in aspect)
    return height, width


def whole_units(side: int, unit: int) -> int:
    """Return a side rounded to whole units, such as patches; at least one."""
    return max(1, round(side / unit)) * unit


def map_sizes(size: Size, strides: Sequence[int]) -> list[Size]:
    """Return the sizes of the input and of the map after each stride; sizes are rounded up."""
    return list(
        accumulate(strides, lambda last, by: (-(-last[0] // by), -(-last[1] // by)), initial=size)
    )
