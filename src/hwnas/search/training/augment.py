"""Augmentation of whole batches of uint8 images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["augment"]

Images = npt.NDArray[np.uint8]


def augment(images: Images, rng: np.random.Generator, shift_pixels: int, flip: bool) -> Images:
    """Shift every image by a few pixels, edges repeated, and mirror half of them.

    Args:
        images: (N, H, W, C) uint8.
        rng: Source of randomness.
        shift_pixels: Largest shift in each direction; 0 for none.
        flip: Whether to mirror left and right.

    Returns:
        (N, H, W, C) uint8.
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
    if not shift_pixels and not flip:
        return images
    return images[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
