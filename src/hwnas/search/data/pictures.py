"""Pictures as targets: the pixels that a network should make of an image, perhaps more of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from hwnas.errors import DataError
from hwnas.search.data.image_cache import Images

__all__ = ["Pictures", "check_pictures", "patch_places", "scaled_down", "upscale_of"]

Pictures = npt.NDArray[np.uint8]
"""uint8 (N, H, W, C): for each image one picture, as large or a whole number of times as large."""


def check_pictures(images: Images, given: npt.NDArray[Any], name: str) -> Pictures:
    """Check pictures against their images and return them.

    Args:
        images: Images, uint8 (N, h, w, C).
        given: Pictures, uint8 (N, H, W, C).
        name: Name of the array, for messages.

    Raises:
        DataError: The type or the channels differ from those of the images, or the sides are not
            the same whole multiple of theirs.
    """
    if given.dtype != np.uint8 or given.ndim != 4 or given.shape[3] != images.shape[3]:
        raise DataError(
            f"{name} is {given.dtype} of shape {given.shape}; pictures are uint8 (N, H, W, "
            f"{images.shape[3]}), with the channels of their images"
        )
    if upscale_of(images.shape[1:3], given.shape[1:3]) is None:
        (height, width), (h, w) = given.shape[1:3], images.shape[1:3]
        raise DataError(
            f"{name} has pictures of {height} x {width} pixels for images of {h} x {w}; both sides "
            "must be the same whole number of times as large"
        )
    return given


def upscale_of(image: Sequence[int], picture: Sequence[int]) -> int | None:
    """Return how many times a picture is as large as its image; None if it is no whole number.

    Args:
        image: Height and width of the image.
        picture: Height and width of the picture.
    """
    factors = {divmod(large, small) for large, small in zip(picture, image, strict=True)}
    if len(factors) > 1:
        return None
    ((factor, rest),) = factors
    return factor if factor and not rest else None


def scaled_down(picture: npt.NDArray[np.uint8], factor: int) -> npt.NDArray[np.uint8]:
    """Scale a picture down by a whole number, bicubically with antialiasing.

    This is the degradation of the literature on super-resolution (bicubic with a = -1/2, as
    ``imresize`` of MATLAB); results are rounded to whole numbers.

    Args:
        picture: uint8 (H, W, C), whose sides are multiples of ``factor``.
        factor: Whole number, at least 1.

    Returns:
        uint8 (H / factor, W / factor, C).
    """
    height, width, channels = picture.shape
    size = width // factor, height // factor
    # Each channel on its own, so that any number of them works, and transparency is no exception.
    scaled = [
        np.asarray(Image.fromarray(picture[..., c]).resize(size, Image.Resampling.BICUBIC))
        for c in range(channels)
    ]
    return np.stack(scaled, axis=2)


def patch_places(size: Sequence[int], patch: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield top and left of patches that cover a picture, row by row, with as few as possible.

    Args:
        size: Height and width of the picture, at least those of a patch.
        patch: Height and width of a patch.
    """
    rows, columns = (
        np.linspace(0, side - part, -(-side // part)).astype(int).tolist()
        for side, part in zip(size, patch, strict=True)
    )
    for top in rows:
        for left in columns:
            yield top, left
