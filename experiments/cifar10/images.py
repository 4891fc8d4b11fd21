"""JPEG copy of CIFAR-10, as a data source of a recipe."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from experiments.command import data_folder
from hwnas.errors import DataError

__all__ = ["first_10000"]

_TRAINING = 10_000


@cache
def first_10000() -> Mapping[str, Any]:
    """Return the first 10,000 training images and all test images; the file is in random order.

    Raises:
        DataError: ``HWNAS_DATA`` is not set, or has no ``images/cifar10_jpeg.npz``.
    """
    path = data_folder() / "images" / "cifar10_jpeg.npz"
    if not path.is_file():
        raise DataError(f"the file {path} does not exist; put the JPEG copy of CIFAR-10 there")
    with np.load(path) as stored:
        arrays = dict(stored)
    return {
        "x_train": _decoded(arrays["train_jpeg"], arrays["train_offsets"], _TRAINING),
        "y_train": arrays["y_train"][:_TRAINING],
        "x_test": _decoded(arrays["test_jpeg"], arrays["test_offsets"], len(arrays["y_test"])),
        "y_test": arrays["y_test"],
        "class_names": arrays["class_names"],
    }


def _decoded(stored: Any, offsets: Any, count: int) -> Any:
    files = (stored[offsets[i] : offsets[i + 1]].tobytes() for i in range(count))
    return np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
