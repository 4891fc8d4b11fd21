"""Pictures that networks make of images of any size, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["picture_of"]


def picture_of(
    image: NDArray[np.uint8],
    tile: tuple[int, int],
    upscale: int,
    network: Callable[[NDArray[np.uint8]], NDArray[np.uint8]],
) -> NDArray[np.uint8]:
    """Return the picture of an image of any size, from a network for tiles of one size.

    Neighbouring tiles overlap by at least a quarter of their side, and each is used up to the
    middle of the overlap, since networks know too little beyond the border of a tile.

    Args:
        image: uint8 (H, W, C).
        tile: Height and width of the network's input.
        upscale: Number of times that a picture is as large as its image, in each direction.
        network: Function that makes pictures, uint8 (N, upscale h, upscale w, C), of tiles, uint8
            (N, h, w, C).

    Returns:
        uint8 (upscale H, upscale W, C).
    """
    height, width, channels = image.shape
    missing = max(0, tile[0] - height), max(0, tile[1] - width)
    padded = np.pad(image, [(0, missing[0]), (0, missing[1]), (0, 0)], "edge")
    rows, columns = _tiles(padded.shape[0], tile[0]), _tiles(padded.shape[1], tile[1])
    size = padded.shape[0] * upscale, padded.shape[1] * upscale, channels
    made = np.empty(size, np.uint8)
    for top, first_row, end_row in rows:
        row = padded[top : top + tile[0]]
        pictures = network(np.stack([row[:, left : left + tile[1]] for left, _, _ in columns]))
        for picture, (left, first, end) in zip(pictures, columns, strict=True):
            used = picture[(first_row - top) * upscale : (end_row - top) * upscale]
            place = made[first_row * upscale : end_row * upscale]
            place[:, first * upscale : end * upscale] = used[
                :, (first - left) * upscale : (end - left) * upscale
            ]
    return made[: height * upscale, : width * upscale]


def _tiles(side: int, part: int) -> Sequence[tuple[int, int, int]]:
    """Return the start of each tile along a side, and the range of pixels that it is used for."""
    step = max(1, part - 2 * (part // 8))
    count = 1 + -(-(side - part) // step)
    starts = np.linspace(0, side - part, count).astype(int).tolist()
    ends = [(starts[i] + part + starts[i + 1]) // 2 for i in range(count - 1)]
    return list(zip(starts, [0, *ends], [*ends, side], strict=True))
