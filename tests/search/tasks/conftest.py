from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hwnas.search.data.image_data import ImageData
from hwnas.search.data.split import Split

ImagesOf = Callable[[Any], ImageData]


@pytest.fixture(scope="session")
def images_of() -> ImagesOf:
    """Return a function that makes striped images with the given values as targets."""

    def made(targets: Any) -> ImageData:
        images = np.zeros((len(targets), 8, 8, 1), np.uint8)
        images[:, ::2] = 255
        values, rows = np.asarray(targets, np.float32), np.arange(len(targets))
        return ImageData(*(Split(images.copy(), values, rows) for _ in range(3)))

    return made
