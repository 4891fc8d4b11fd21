"""Masks as PNG files: pixel values are classes, and a palette makes them visible."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.atomic import replacing
from hwnas.errors import ConfigError

__all__ = ["mask_png", "palette", "write_mask", "write_png"]


def write_mask(path: Path, mask: NDArray[np.uint8]) -> None:
    """Write a mask in the format of `mask_png`.

    Args:
        path: PNG file to write, which ends in ``.png``; an existing file is replaced.
        mask: Class of each pixel, uint8 (H, W).

    Raises:
        ConfigError: The name does not end in ``.png``; other formats would change the classes.
        StorageError: The file cannot be written.
    """
    write_png(path, mask_png(mask), "masks")


def write_png(path: Path, content: bytes, what: str) -> None:
    """Write an encoded PNG.

    Args:
        path: PNG file to write, which ends in ``.png``; an existing file is replaced.
        content: Content of the file.
        what: What is written, in the plural, for the message.

    Raises:
        ConfigError: The name does not end in ``.png``.
        StorageError: The file cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{what} are written as PNG, but the file is {path}; use the ending .png")
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def mask_png(mask: NDArray[np.uint8]) -> bytes:
    """Encode a mask as a PNG of mode ``P``, with the colours of Pascal VOC.

    ``numpy.asarray(PIL.Image.open(path))`` returns the mask.

    Args:
        mask: Class of each pixel, uint8 (H, W).
    """
    image = Image.fromarray(mask)
    image.putpalette(bytes(part for colour in palette() for part in colour))
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


@cache
def palette() -> tuple[tuple[int, int, int], ...]:
    """Return red, green and blue of 256 classes; the bits of a class alternate between the colours.

    This is the colour map of the Pascal VOC development kit: neighbouring class numbers look most
    different, and class 0 is black.
    """
    classes = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            if 3 * bit + channel < 8:
                colours[:, channel] |= (((classes >> (3 * bit + channel)) & 1) << (7 - bit)).astype(
                    np.uint8
                )
    return tuple((red, green, blue) for red, green, blue in colours.tolist())
