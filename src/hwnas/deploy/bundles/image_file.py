"""Decoding of image files to uint8 pixels: upright, 16 bits scaled to 8, with the wanted channels.

Every image that hwnas opens goes through this module, so that training, evaluation and deployment
see the same pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from hwnas.deploy.error_line import first_line
from hwnas.errors import DamagedImage, DataError

__all__ = [
    "PILLOW_MODES",
    "Fit",
    "centred_box",
    "highest_value",
    "is_grey",
    "prepared",
    "read_pixels",
    "upright_pixels",
    "upright_size",
]

PILLOW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's image modes by number of channels."""

Fit = Literal["stretch", "crop"]
"""How images get another aspect ratio: they are stretched, or cropped around the centre."""


def highest_value(image: Image.Image) -> int:
    """Return the pixel value that stands for white in an image as opened by Pillow.

    Returns:
        255 for 8 bits per channel; up to 65,535 for grey images with more bits.

    Raises:
        ValueError: Pixels of the image's mode have no defined range; the message names the mode.
    """
    if image.mode in ("I;16", "I;16B", "I;16L", "I;16N"):
        bits = _tiff_tag(image, ExifTags.Base.BitsPerSample, 16)  # 12-bit values go up to 4,095
        return (1 << bits) - 1
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # at most 16 bits
        return 2**16 - 1
    if image.mode in ("I", "F"):
        raise ValueError(
            f"pixels of mode {image.mode!r} are 32-bit numbers without a defined white value; "
            "convert the image to 8 or 16 bits per channel"
        )
    return 255


def _tiff_tag(image: Image.Image, tag: int, default: int) -> int:
    value = getattr(image, "tag_v2", {}).get(tag, default)
    return int(value[0] if isinstance(value, tuple) else value)


def upright_pixels(
    image: Image.Image, mode: str, size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Decode an image, rotate it upright (EXIF) and convert it to 8 bits per channel.

    Grey images of 9 to 16 bits are scaled: white stays white and black stays black. Pillow itself
    would clip them at 255. Of colours with 16 bits, Pillow keeps the upper 8.

    Args:
        image: Result of `PIL.Image.open`, not converted; it is rotated in place.
        mode: Mode of the result: ``"L"``, ``"RGB"`` or ``"RGBA"``.
        size: Height and width that the image will be resized to. A JPEG file is then decoded at a
            half, a quarter or an eighth of its size, if that is still twice the given size. The
            decoder leaves out the high frequencies, which takes less time than decoding them.

    Returns:
        uint8 (H, W) for ``"L"``, otherwise (H, W, C).

    Raises:
        ValueError: Pixels of the image's mode have no defined range.
    """
    highest = highest_value(image)
    invert = _tiff_tag(image, ExifTags.Base.PhotometricInterpretation, 1) == 0 and highest != 255
    if size is not None:
        height, width = reversed(size) if _is_on_its_side(image) else size
        image.draft(None, (2 * width, 2 * height))
    image.load()  # rotates TIFF files, and drops their orientation
    ImageOps.exif_transpose(image, in_place=True)
    if highest != 255:
        numbers = np.asarray(image).astype(np.uint32).clip(0, highest)
        numbers = highest - numbers if invert else numbers
        image = Image.fromarray(((numbers * 255 + highest // 2) // highest).astype(np.uint8))
    return np.array(image if image.mode == mode else image.convert(mode))


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the upright height and width of an open image without decoding it."""
    width = _tiff_tag(image, ExifTags.Base.ImageWidth, image.width)  # image.width is rotated
    height = _tiff_tag(image, ExifTags.Base.ImageLength, image.height)
    return (width, height) if _is_on_its_side(image) else (height, width)


def _is_on_its_side(image: Image.Image) -> bool:
    return image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)


def is_grey(image: Image.Image) -> bool:
    """Return whether an open image has a single grey channel.

    Raises:
        ValueError: Pixels of the image's mode have no defined range.
    """
    return highest_value(image) != 255 or image.mode in ("1", "L")


def centred_box(shape: Sequence[int], size: tuple[int, int]) -> tuple[slice, slice]:
    """Return rows and columns of the largest centred part that has the aspect ratio of a size.

    Args:
        shape: Height and width of the image in pixels.
        size: Height and width, whose ratio is wanted.
    """
    height, width = shape
    rows = min(height, max(1, round(width * size[0] / size[1])))
    columns = min(width, max(1, round(height * size[1] / size[0])))
    top, left = (height - rows) // 2, (width - columns) // 2
    return slice(top, top + rows), slice(left, left + columns)


def prepared(image: NDArray[np.uint8], how: Mapping[str, Any]) -> NDArray[np.float32]:
    """Preprocess an image as `hwnas.deploy.Preprocessing` does, without PyTorch.

    Args:
        image: Pixels (H, W, C) from `upright_pixels`.
        how: Preprocessing from bundle.json or cascade.json.

    Returns:
        (1, C, height, width).
    """
    if how.get("fit") == "crop":
        rows, columns = centred_box(image.shape[:2], (how["height"], how["width"]))
        image = image[rows, columns]
    size = (how["width"], how["height"])
    channels = [
        np.asarray(Image.fromarray(plane).resize(size, Image.Resampling.BILINEAR))
        for plane in image.transpose(2, 0, 1).astype(np.float32)
    ]
    mean, std = (np.float32(how[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    return ((np.stack(channels) / 255 - mean) / std)[None].astype(np.float32)


def read_pixels(
    source: Path | BinaryIO, channels: int, size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Read an image file.

    Args:
        source: Path of the file, or the open file.
        channels: 1 for grey, 3 for red, green and blue, 4 with transparency.
        size: Height and width that the image will be resized to, if that is known; large JPEG files
            are then decoded at a reduced size, see `upright_pixels`.

    Returns:
        uint8 (H, W, channels), upright.

    Raises:
        DamagedImage: The file is not an image, or it is damaged.
        DataError: The file does not exist, cannot be read, or has pixels without a defined range.
    """
    name = str(source) if isinstance(source, Path) else "the given file"
    try:
        # Not opened by path: Pillow then maps rotated plain TIFF files with a wrong width.
        with (
            source.open("rb") if isinstance(source, Path) else nullcontext(source) as file,
            Image.open(file) as image,
        ):
            try:
                highest_value(image)
            except ValueError as error:
                raise DataError(f"{name}: {error}") from None
            pixels = upright_pixels(image, PILLOW_MODES[channels], size)
    except FileNotFoundError:
        raise DataError(f"there is no image {source}; give the path of an existing file") from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # damaged files make Pillow raise nearly anything
        if isinstance(error, OSError) and error.strerror is not None:
            raise DataError(f"{name} cannot be read as an image ({error.strerror})") from error
        reason = first_line(error).partition(" <")[0]  # without the object that Pillow names
        message = f"{name} cannot be read as an image ({reason}); expected PNG, JPEG or similar"
        raise DamagedImage(message, reason) from error
    return pixels.reshape(*pixels.shape[:2], channels)
