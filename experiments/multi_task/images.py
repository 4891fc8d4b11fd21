"""Three tasks on each image of Fashion-MNIST: the garment, its turn, and a mirrored quarter."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.command import data_folder
from hwnas.errors import DataError

__all__ = ["TASKS", "garments"]

TASKS = ("garment", "turn", "quarter")
_SEED = 0  # of the turns and quarters, which are the same for all seeds of the experiment


@cache
def garments() -> Mapping[str, Any]:
    """Return images of 28 x 28 grey pixels, and the classes of three tasks, (N, 3).

    An image is first mirrored from left to right in one of its quarters, then turned by a number of
    quarter turns. The classes are those of the garment, of the turns, and of the quarter before
    turning.

    Raises:
        DataError: ``HWNAS_DATA`` is not set, or has no ``images/fashion_mnist.npz``.
    """
    path = data_folder() / "images" / "fashion_mnist.npz"
    if not path.is_file():
        raise DataError(f"the file {path} does not exist; put Fashion-MNIST there")
    rng, found = np.random.default_rng(_SEED), {}
    with np.load(path) as stored:
        for part in ("train", "test"):
            labels = stored[f"y_{part}"].reshape(-1)
            turns, quarters = rng.integers(0, 4, (2, len(labels)))
            found[f"x_{part}"] = _changed(stored[f"x_{part}"], turns, quarters)
            found[f"y_{part}"] = np.stack([labels, turns, quarters], axis=1)
    return found


def _changed(
    images: NDArray[np.uint8], turns: NDArray[np.int64], quarters: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return images (N, H, W) with a mirrored quarter, turned counterclockwise."""
    changed, half = images.copy(), images.shape[1] // 2
    for quarter in range(4):
        rows, columns = (slice(half * k, half * (k + 1)) for k in divmod(quarter, 2))
        of_quarter = quarters == quarter
        changed[of_quarter, rows, columns] = images[of_quarter, rows, columns][:, :, ::-1]
    for turn in range(1, 4):
        changed[turns == turn] = np.rot90(changed[turns == turn], turn, axes=(1, 2))
    return changed
