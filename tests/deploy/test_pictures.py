"""Pictures of large images, made tile by tile."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.deploy.pictures import picture_of

sides = st.integers(1, 50)


@given(
    height=sides, width=sides, tile=st.tuples(*[st.integers(1, 20)] * 2), upscale=st.integers(1, 3)
)
def test_tiles_of_a_network_without_neighbours_give_the_whole_picture(
    height: int, width: int, tile: tuple[int, int], upscale: int
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 2), dtype=np.uint8)

    def network(tiles: NDArray[np.uint8]) -> NDArray[np.uint8]:
        assert tiles.shape[1:] == (*tile, 2)
        return tiles.repeat(upscale, 1).repeat(upscale, 2)

    whole = image.repeat(upscale, 0).repeat(upscale, 1)
    assert (picture_of(image, tile, upscale, network) == whole).all()


def test_pixels_at_the_border_of_tiles_are_not_used() -> None:
    image = np.ones((60, 70, 1), np.uint8)

    def network(tiles: NDArray[np.uint8]) -> NDArray[np.uint8]:
        made = tiles.repeat(2, 1).repeat(2, 2)
        for border in (np.s_[:, :4], np.s_[:, -4:], np.s_[:, :, :4], np.s_[:, :, -4:]):
            made[border] = 0  # two pixels of an image
        return made

    picture = picture_of(image, (16, 16), 2, network)
    assert picture.shape == (120, 140, 1)
    assert (picture[4:-4, 4:-4] == 1).all()
    assert (picture[:4] == 0).all(), "those at the border of the image are"
