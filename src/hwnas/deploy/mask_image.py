"""Masks as image files: the classes are the pixels' values, and a palette makes them visible."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.atomic import replacing
from hwnas.errors import ConfigError

__all__ = ["mask_png", "write_mask"]


def write_mask(path: Path, mask: NDArray[np.uint8]) -> None:
    """Write a mask as `mask_png` has it.

    Args:
        path: Of the file, ending in ``.png``; replaced if it is there.
        mask: uint8 (H, W), classes.

    Raises:
        ConfigError: The name does not end in ``.png``; other formats would change the classes.
        StorageError: The file cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise ConfigError(f"a mask is written as PNG, but the file is {path}; end it in .png")
    with replacing(path) as temporary:
        temporary.write_bytes(mask_png(mask))


def mask_png(mask: NDArray[np.uint8]) -> bytes:
    """A PNG of the mode ``P``, with the colours of Pascal VOC.

    ``numpy.asarray(PIL.Image.open(path))`` gives the mask again.

    Args:
        mask: uint8 (H, W), classes.
    """
    image = Image.fromarray(mask)
    image.putpalette(_palette())
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def _palette() -> bytes:
    """Red, green and blue of 256 classes: their bits are dealt out to the colours in turn.

    The colour map of the Pascal VOC development kit: neighbouring numbers look most different, and
    class 0 is black.
    """
    classes = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            if 3 * bit + channel < 8:
                colours[:, channel] |= (((classes >> (3 * bit + channel)) & 1) << (7 - bit)).astype(
                    np.uint8
                )
    return colours.tobytes()
