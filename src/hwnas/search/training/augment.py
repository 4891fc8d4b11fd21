"""Augmentation of whole batches of uint8 images, and of their masks with them."""

from __future__ import annotations

import numpy as np

from hwnas.search.image_cache import Images
from hwnas.search.raw_images import Targets, target_kind

__all__ = ["augment"]


def augment(
    images: Images,
    targets: Targets,
    rng: np.random.Generator,
    shift_pixels: int,
    flip: bool,
    cutout: float = 0.0,
) -> tuple[Images, Targets]:
    """Shift every image by a few pixels, edges repeated, mirror half of them, erase a square.

    Masks are shifted and mirrored as their images are; what was erased keeps its class, to be told
    from what is around it. Other targets stay as they are.

    What is erased takes the mean colour of its image (DeVries and Taylor, "Improved Regularization
    of Convolutional Neural Networks with Cutout", 2017); the square's centre may be anywhere, so
    part of it may lie outside.

    Args:
        images: (N, H, W, C) uint8.
        targets: First dimension N; masks are (N, H, W) uint8.
        rng: Source of randomness.
        shift_pixels: Largest shift in each direction; 0 for none.
        flip: Whether to mirror left and right.
        cutout: Side of the square as a share of the image's longer side, in [0, 1]; 0 for none.

    Returns:
        Images and targets, of the same shapes.
    """
    n, height, width, _ = images.shape
    rows = np.broadcast_to(np.arange(height), (n, height))
    columns = np.broadcast_to(np.arange(width), (n, width))
    if shift_pixels:
        dy, dx = rng.integers(-shift_pixels, shift_pixels + 1, size=(2, n, 1))
        rows = np.clip(rows + dy, 0, height - 1)
        columns = np.clip(columns + dx, 0, width - 1)
    if flip:
        mirrored = rng.random((n, 1)) < 0.5
        columns = np.where(mirrored, columns[:, ::-1], columns)
    if shift_pixels or flip:
        moved = np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
        images = images[moved]
        if target_kind(targets) == "masks":
            targets = targets[moved]
    side = round(cutout * max(height, width))
    return _erased(images, rng, side) if side else images, targets


def _erased(images: Images, rng: np.random.Generator, side: int) -> Images:
    n, height, width, _ = images.shape
    centres = rng.integers((height, width), size=(n, 2))
    inside = [
        (np.arange(size) >= start[:, None]) & (np.arange(size) < start[:, None] + side)
        for size, start in zip((height, width), (centres - side // 2).T, strict=True)
    ]
    square = (inside[0][:, :, None] & inside[1][:, None, :])[..., None]
    colour = images.mean((1, 2), keepdims=True).round().astype(np.uint8)
    return np.where(square, colour, images)
