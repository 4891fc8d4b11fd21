"""Segmentation masks made from Fashion-MNIST: a pixel is background or of the garment's class."""

import os
from pathlib import Path

import numpy as np

THRESHOLD = 32
"""Lowest grey value, of 255, of a pixel of the garment."""


def fashion_masks() -> dict[str, np.ndarray]:
    """Return images of 28x28 grey pixels and their masks, with one of eleven classes per pixel."""
    with np.load(Path(os.environ["HWNAS_DATA"], "images", "fashion_mnist.npz")) as arrays:
        garments = [str(name) for name in arrays["class_names"]]
        parts = {
            part: (arrays[f"x_{part}"], arrays[f"y_{part}"].reshape(-1))
            for part in ("train", "test")
        }
    found: dict[str, np.ndarray] = {"class_names": np.array(["background", *garments])}
    for part, (images, labels) in parts.items():
        garment = (labels + 1).astype(np.uint8)[:, None, None]
        found[f"x_{part}"] = images
        found[f"y_{part}"] = np.where(images >= THRESHOLD, garment, 0).astype(np.uint8)
    return found
