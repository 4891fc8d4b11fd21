"""Size that the images of a data set are brought to when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch.nn import functional

from hwnas.deploy.bundles.image_file import Fit, centred_box, read_pixels
from hwnas.search.data.image_cache import Images
from hwnas.search.data.masks import Masks

__all__ = ["ImageSize", "read_image", "size_key"]


@dataclass(frozen=True)
class ImageSize:
    """Height and width that images of any size are brought to.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        fit: Whether images of another aspect ratio are stretched, or cropped around the centre.
    """

    height: int
    width: int
    fit: Fit = "stretch"

    def resize(self, images: Images) -> Images:
        """Resize images, (N, H, W, C), bilinearly, with antialiasing where they shrink.

        The result is computed in whole numbers, which takes a fifth of the time of floats. It
        differs from the inputs of deployment, which are computed in floats, by their rounding.
        """
        if self.fit == "crop":
            rows, columns = centred_box(images.shape[1:3], (self.height, self.width))
            images = images[:, rows, columns]
        height, width = images.shape[1:3]
        if (height, width) == (self.height, self.width):
            return np.ascontiguousarray(images)
        # PyTorch warns of read-only arrays, such as memory-mapped ones; such a block is copied.
        pixels = torch.from_numpy(np.require(images, requirements=["C", "W"])).permute(0, 3, 1, 2)
        shrinks = self.height < height or self.width < width
        resized = functional.interpolate(
            pixels, (self.height, self.width), mode="bilinear", antialias=shrinks
        )
        return np.ascontiguousarray(resized.permute(0, 2, 3, 1).numpy())

    def resize_masks(self, masks: Masks) -> Masks:
        """Stretch masks, (N, H, W), by nearest neighbour."""
        block = torch.from_numpy(np.require(masks, requirements=["C", "W"]))[:, None]
        # "nearest-exact" aligns pixel centres with those of the resized images ("nearest" would
        # shift them by half a pixel). Only some of PyTorch's kernels for it support uint8, hence
        # float.
        near = functional.interpolate(
            block.float(), (self.height, self.width), mode="nearest-exact"
        )
        resized: Masks = near[:, 0].byte().numpy()
        return resized


def size_key(size: ImageSize | None) -> str:
    """Return the name of a size, or ``"own"``, for the arrays in a cache."""
    if size is None:
        return "own"
    square = size.height == size.width
    side = str(size.height) if square else f"{size.height}x{size.width}"
    return side if size.fit == "stretch" else f"{side}-{size.fit}"


def read_image(source: Path | BinaryIO, channels: int, size: ImageSize | None) -> Images:
    """Read an image file, upright, at a size: uint8 (H, W, C).

    Args:
        source: Path of the file, or the open file.
        channels: 1 for grey, 3 for red, green and blue.
        size: Size that it is brought to; None for its own.

    Raises:
        DamagedImage: The file is not an image, or it is damaged.
        DataError: The file does not exist, cannot be read, or has pixels without a defined range.
    """
    if size is None:
        return read_pixels(source, channels)
    pixels = read_pixels(source, channels, (size.height, size.width))
    resized: Images = size.resize(pixels[np.newaxis])[0]
    return resized
