"""T91 in patches to train on, Set5 and Set14 to test on, all of them scaled down by two."""

import os
from pathlib import Path

import numpy as np

from hwnas.search.data.pictures import patch_places, scaled_down

UPSCALE = 2
SIDE = 32
"""Side of the images, which are patches, in pixels."""
SETS = ("set5", "set14")


def pictures_of(name: str) -> list[np.ndarray]:
    """Return the pictures of a set, uint8 (H, W, 3) each, with even sides."""
    path = Path(os.environ["HWNAS_DATA"], "images", "superres_t91_set5_set14.npz")
    with np.load(path) as arrays:
        found = [arrays[key] for key in sorted(arrays.files) if key.startswith(f"{name}/")]
    return [each[: len(each) // 2 * 2, : each.shape[1] // 2 * 2] for each in found]


def patches() -> dict[str, np.ndarray]:
    """Return patches of T91, and of Set5 and Set14 together, with the picture each comes from."""
    train, test = pictures_of("t91"), [each for name in SETS for each in pictures_of(name)]
    arrays: dict[str, np.ndarray] = {}
    for part, pictures in (("train", train), ("test", test)):
        cut = [_patches(each) for each in pictures]
        arrays[f"x_{part}"] = np.concatenate([images for images, _ in cut])
        arrays[f"y_{part}"] = np.concatenate([targets for _, targets in cut])
        if part == "train":
            arrays["groups"] = np.repeat(np.arange(len(cut)), [len(images) for images, _ in cut])
    return arrays


def _patches(picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    image = scaled_down(picture, UPSCALE)
    places = list(patch_places(image.shape[:2], (SIDE, SIDE)))
    images = [image[top : top + SIDE, left : left + SIDE] for top, left in places]
    side = UPSCALE * SIDE
    targets = [picture[UPSCALE * top :, UPSCALE * left :][:side, :side] for top, left in places]
    return np.stack(images), np.stack(targets)
