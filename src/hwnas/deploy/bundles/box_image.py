"""Images with boxes drawn on them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hwnas.deploy.bundles.mask_image import palette, write_png

__all__ = ["image_with_boxes", "write_image"]


def image_with_boxes(
    pixels: NDArray[np.uint8], boxes: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> Image.Image:
    """Return an image with boxes, their labels and scores; each label has a colour of its own.

    Args:
        pixels: Image, uint8 (H, W, C) with 1, 3 or 4 channels.
        boxes: Boxes; see `hwnas.deploy.io.OutputMeaning.describe`.
        labels: All labels; their order decides the colours.
    """
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    draw, (width, height) = ImageDraw.Draw(image), image.size
    line = max(1, round(min(width, height) / 150))
    for box in reversed(boxes):  # the highest scores last, on top of the others
        colour = palette()[1 + list(labels).index(box["label"])]
        left, right = box["left"] * (width - 1), box["right"] * (width - 1)
        top, bottom = box["top"] * (height - 1), box["bottom"] * (height - 1)
        draw.rectangle((left, top, right, bottom), outline=colour, width=line)
        text, size = f"{box['label']} {box['score']:.2f}", max(8, round(min(width, height) / 25))
        place = (left + line + 1, top + line)
        bounds = draw.textbbox(place, text, font_size=size)
        draw.rectangle(bounds, fill=colour)
        ink = "black" if sum(colour) > 3 * 127 else "white"
        draw.text(place, text, fill=ink, font_size=size)
    return image


def write_image(path: Path, image: Image.Image) -> None:
    """Write an image as a PNG; see `hwnas.deploy.bundles.mask_image.write_png`."""
    file = io.BytesIO()
    image.save(file, format="PNG")
    write_png(path, file.getvalue(), "images")
