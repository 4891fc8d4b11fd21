"""RandAugment: random operations on images, all of the same strength.

Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space",
NeurIPS 2020, section 3. Pillow computes the operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from hwnas.search.data.image_cache import Images
from hwnas.search.data.masks import VOID
from hwnas.search.data.raw_images import Targets, target_kind

__all__ = ["CHANNELS", "rand_augmented"]

CHANNELS = (1, 3)
"""Numbers of channels of the images that the operations are defined for."""

_FILL = 128  # value of pixels that come from outside of the image
_LARGEST_CHANGE = 0.9  # of colour, contrast, brightness and sharpness
_LARGEST_ANGLE = math.radians(30)
_LARGEST_SHEAR = 0.3
_LARGEST_SHIFT = 0.45  # as a share of the side
_FEWEST_BITS = 4

Matrix = tuple[float, float, float, float, float, float]
"""Affine map (a, b, c, d, e, f) from a place (x, y) of the result to (ax + by + c, dx + ey + f)."""
ColourOperation = Callable[[Image.Image, float], Image.Image]
"""Function of an image and a strength in [-1, 1] that returns the changed image."""
GeometricOperation = Callable[[float, int, int], Matrix]
"""Function of a strength in [-1, 1], a width and a height."""


class _Enhancer(Protocol):
    def enhance(self, factor: float) -> Image.Image: ...


def _enhanced(kind: Callable[[Image.Image], _Enhancer]) -> ColourOperation:
    return lambda image, strength: kind(image).enhance(1 + _LARGEST_CHANGE * strength)


def _posterized(image: Image.Image, strength: float) -> Image.Image:
    return ImageOps.posterize(image, 8 - round(abs(strength) * (8 - _FEWEST_BITS)))


def _solarized(image: Image.Image, strength: float) -> Image.Image:
    return ImageOps.solarize(image, round(255 * (1 - abs(strength))))


def _rotated(strength: float, width: int, height: int) -> Matrix:
    cos, sin = math.cos(strength * _LARGEST_ANGLE), math.sin(strength * _LARGEST_ANGLE)
    x, y = width / 2, height / 2
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def _sheared_x(strength: float, width: int, height: int) -> Matrix:
    shear = strength * _LARGEST_SHEAR
    return 1, shear, -shear * height / 2, 0, 1, 0


def _sheared_y(strength: float, width: int, height: int) -> Matrix:
    shear = strength * _LARGEST_SHEAR
    return 1, 0, 0, shear, 1, -shear * width / 2


def _shifted_x(strength: float, width: int, height: int) -> Matrix:
    return 1, 0, strength * _LARGEST_SHIFT * width, 0, 1, 0


def _shifted_y(strength: float, width: int, height: int) -> Matrix:
    return 1, 0, 0, 0, 1, strength * _LARGEST_SHIFT * height


_COLOUR: tuple[ColourOperation, ...] = (
    lambda image, strength: image,
    lambda image, strength: ImageOps.autocontrast(image),
    lambda image, strength: ImageOps.equalize(image),
    _posterized,
    _solarized,
    _enhanced(ImageEnhance.Color),
    _enhanced(ImageEnhance.Contrast),
    _enhanced(ImageEnhance.Brightness),
    _enhanced(ImageEnhance.Sharpness),
)
_GEOMETRIC: tuple[GeometricOperation, ...] = (
    _rotated,
    _sheared_x,
    _sheared_y,
    _shifted_x,
    _shifted_y,
)


def rand_augmented(
    images: Images, targets: Targets, rng: np.random.Generator, operations: int, strength: float
) -> tuple[Images, Targets]:
    """Apply random operations to each image, and the geometric ones to its mask, too.

    Images with values or boxes get no geometric operations, which may change the values, and of
    which a rotation or shear would make boxes too large.

    Args:
        images: (N, H, W, C) uint8, with one of `CHANNELS` channels.
        targets: First dimension N; masks are (N, H, W) uint8. Pixels of a mask that come from
            outside are `VOID`.
        rng: Source of randomness.
        operations: Number of operations on each image.
        strength: Strength of each operation, in [0, 1]; the paper's magnitude over its maximum. An
            operation with two directions takes a random one.
    """
    kind = target_kind(targets)
    known = len(_COLOUR) + (0 if kind in ("values", "boxes") else len(_GEOMETRIC))
    chosen = rng.integers(known, size=(len(images), operations))
    strengths = strength * rng.choice((-1.0, 1.0), size=chosen.shape)
    found = np.empty_like(images)
    moved = targets.copy() if kind == "masks" else targets
    for row, pixels in enumerate(images):
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        mask = Image.fromarray(moved[row]) if kind == "masks" else None
        for number, each in zip(chosen[row], strengths[row], strict=True):
            if number < len(_COLOUR):
                image = _COLOUR[number](image, each)
                continue
            matrix = _GEOMETRIC[number - len(_COLOUR)](each, *image.size)
            image = _moved(image, matrix, Image.Resampling.BILINEAR, _FILL)
            if mask is not None:
                mask = _moved(mask, matrix, Image.Resampling.NEAREST, VOID)
        found[row] = np.asarray(image).reshape(pixels.shape)
        if mask is not None:
            moved[row] = np.asarray(mask)
    return found, moved


def _moved(
    image: Image.Image, matrix: Matrix, resampling: Image.Resampling, fill: int
) -> Image.Image:
    fills = fill if image.mode == "L" else (fill,) * 3
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resampling, fillcolor=fills)
