"""Images with masks, labels or boxes, as a user's function returns them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VOID = 255


def colours(n: int = 120) -> dict[str, NDArray]:
    """Return images whose three labels say which of their channels are bright."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (n, 3))
    images = 100 * labels[:, None, None] + rng.integers(0, 100, (n, 8, 8, 3))
    cut = n * 3 // 4
    return {
        "x_train": images[:cut].astype(np.uint8),
        "y_train": labels[:cut],
        "x_test": images[cut:].astype(np.uint8),
        "y_test": labels[cut:],
    }


def squares(n: int = 80) -> dict[str, NDArray]:
    """Return dark (class 0) and light (class 1) squares of two pixels on grey, with their boxes."""
    rng = np.random.default_rng(0)
    images = rng.integers(108, 149, (n, 8, 8, 1))
    boxes = np.full((n, 2, 5), -1.0)
    for row, image in enumerate(images):
        for kind, place in enumerate(rng.permutation(9)[: rng.integers(1, 3)]):
            top, left = 3 * (place // 3), 3 * (place % 3)
            image[top : top + 2, left : left + 2] = (20, 235)[kind]
            boxes[row, kind] = [left / 8, top / 8, (left + 2) / 8, (top + 2) / 8, kind]
    cut = n * 3 // 4
    return {
        "x_train": images[:cut].astype(np.uint8),
        "y_train": boxes[:cut],
        "x_test": images[cut:].astype(np.uint8),
        "y_test": boxes[cut:],
        "class_names": np.array(["hole", "light"]),
    }


def strokes(n: int = 60) -> dict[str, NDArray]:
    """Return dark (class 1) and light (class 2) columns; the last row of the masks is ignored."""
    rng = np.random.default_rng(0)
    masks = np.zeros((n, 8, 8), np.uint8)
    for mask in masks:
        for kind in (1, 2):
            start, width = rng.integers(0, 8), rng.integers(1, 4)
            mask[:, start : start + width] = kind
    shades = np.array([128, 40, 220])[masks] + rng.integers(-20, 21, masks.shape)
    masks[:, -1] = VOID
    cut = n * 3 // 4
    return {
        "x_train": shades[:cut].astype(np.uint8),
        "y_train": masks[:cut],
        "x_test": shades[cut:].astype(np.uint8),
        "y_test": masks[cut:],
        "class_names": np.array(["paper", "ink", "chalk"]),
    }


def pictures(n: int = 80) -> dict[str, NDArray]:
    """Return pictures with an edge of dark and light, 16 x 16 pixels, at half of their size."""
    rng = np.random.default_rng(0)
    colours = np.array([[[[[30]]]], [[[[190]]]]]) + rng.integers(0, 50, (2, n, 1, 1, 3))
    angles = rng.uniform(-np.pi, np.pi, (n, 1, 1))
    rows, columns = np.mgrid[:16, :16] - 7.5
    across = rows * np.cos(angles) + columns * np.sin(angles) + rng.uniform(-4, 4, (n, 1, 1))
    share = np.clip(across + 0.5, 0, 1)[..., None]
    made = (share * colours[0] + (1 - share) * colours[1]).round().astype(np.uint8)
    halved = made.reshape(n, 8, 2, 8, 2, 3).mean((2, 4)).round().astype(np.uint8)
    cut = n * 3 // 4
    return {
        "x_train": halved[:cut],
        "y_train": made[:cut],
        "x_test": halved[cut:],
        "y_test": made[cut:],
    }
