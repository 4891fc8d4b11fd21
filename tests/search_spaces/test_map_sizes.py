"""Sizes of inputs and of feature maps, and spaces for images that are not square."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.map_sizes import SQUARE, aspect_of, input_size, map_sizes
from hwnas.search_spaces.registry import named_space

sides = st.integers(1, 400)


@given(height=sides, width=sides)
def test_images_at_their_own_resolution_keep_their_size(height: int, width: int) -> None:
    aspect = aspect_of((height, width, 3))
    assert input_size(max(height, width), aspect) == (height, width)
    assert (aspect == SQUARE) == (height == width)


@given(height=sides, width=sides, resolution=sides)
def test_longer_side_has_the_resolution(height: int, width: int, resolution: int) -> None:
    size = input_size(resolution, aspect_of((height, width, 3)))
    assert max(size) == resolution
    assert min(size) >= 1
    assert (size[0] - size[1]) * (height - width) >= 0


@given(height=st.integers(1, 40), width=st.integers(1, 40), strides=st.lists(st.integers(1, 3)))
def test_map_sizes_are_those_of_padded_convolutions(
    height: int, width: int, strides: list[int]
) -> None:
    maps = torch.zeros(1, 1, height, width)
    found = map_sizes((height, width), strides)
    assert found[0] == (height, width)
    for stride, size in zip(strides, found[1:], strict=True):
        maps = nn.Conv2d(1, 1, 3, stride, 1)(maps)
        assert tuple(maps.shape[2:]) == size


@pytest.mark.parametrize("family", ["mobilenet", "resnet", "hybrid"])
@pytest.mark.parametrize("shape", [(48, 96, 3), (96, 48, 3)])
def test_networks_take_images_in_their_aspect_ratio(
    family: str, shape: tuple[int, int, int]
) -> None:
    space = named_space(family, shape, 5, {"resolution": [64, 96]})
    for architecture in (space.smallest(), space.largest()):
        channels, height, width = space.input_shape(architecture)
        assert (channels, height / width) == (3, shape[0] / shape[1])
        network = space.build(architecture).eval()
        with torch.no_grad():
            assert network(torch.zeros(2, channels, height, width)).shape == (2, 5)


@pytest.mark.parametrize("family", ["mobilenet", "resnet", "hybrid"])
def test_a_short_side_that_is_too_short_is_refused(family: str) -> None:
    with pytest.raises(ConfigError, match=r"images of 2 x 96 pixels are too small for the space"):
        named_space(family, (2, 96, 3), 5, {"preset": "small", "resolution": [96]})


def test_square_spaces_keep_their_fingerprints() -> None:
    """Runs that were made before there were others stay valid."""
    for family in ("mobilenet", "resnet", "hybrid"):
        identity = named_space(family, (32, 32, 3), 5, {}).identity
        assert not {"aspect", "dense_head"} & identity.keys()
        assert "aspect" in named_space(family, (24, 32, 3), 5, {}).identity
