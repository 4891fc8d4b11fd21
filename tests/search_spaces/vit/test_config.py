"""Errors of wrong configurations of the vit space, and its derived values."""

import dataclasses
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import VitConfig

CONFIG = VitConfig(depth=(1, 2), width=(32, 48), heads=(1, 2), patch_size=(8, 4), resolution=(16,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": (5,)}, "5 heads do not divide the width 48; choose numbers of heads whose"),
        ({"head_width": -1}, "head_width is -1; expected at least 1"),
        ({"depth": ()}, r"depth is \[\]; expected positive options"),
        ({"width": (48, 32)}, r"width is \[48, 32\]; expected positive options, increasing"),
        ({"width": (32.5,)}, r"width is \[32\.5\]; expected whole numbers"),
        ({"patch_size": (4, 8)}, r"patch_size, from its end, is \[8, 4\]; expected positive"),
        ({"patch_size": (32,)}, "images of 16 pixels are smaller than a patch of 32"),
        ({"resolution": (20,)}, "resolution 20 is not a multiple of the largest patch size 8"),
        ({"patch_size": (4, 1)}, r"patch_size \[4, 1\] mixes even and odd"),
        ({"position": "table"}, 'position = "table" needs a single patch size'),
        ({"position": "sine"}, "position is 'sine'; expected convolution or table"),
        ({"rank": (0.5, 1.5)}, r"rank is \[0\.5, 1\.5\]; expected shares of at most 1"),
        ({"rank": (0.9, 1)}, r"gives the ranks \[.*\] at width 32 with 1 heads; ranks are"),
        ({"mlp_ratio": (2, 2.1)}, r"mlp_ratio \[2, 2\.1\] gives \[64, 64\] hidden channels"),
        ({"merging": (0, 0.2)}, r"merging is \[0, 0\.2\]; expected decreasing shares of at most"),
        ({"merging": (0.6,)}, r"merging is \[0\.6\]; expected decreasing shares of at most 0\.5"),
        ({"merging": ()}, r"merging is \[\]; expected decreasing"),
        ({"merging": (0.26, 0.25)}, r"leaves \[3, 3\] tokens after one block, of images of 16"),
        ({"outputs": 0}, "outputs is 0; expected at least 1"),
        ({"in_channels": 0}, "in_channels is 0; expected at least 1"),
        ({"dropout": 1.0}, r"dropout is 1\.0; expected a probability in \[0, 1\)"),
    ],
)
def test_vit_config_refuses_wrong_fields_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        dataclasses.replace(CONFIG, **{"head_width": 0, **change})
    assert len(str(raised.value).splitlines()) == 1


def test_vit_config_derives_head_width_from_the_largest_network() -> None:
    assert CONFIG.head_width == 24
    assert dataclasses.replace(CONFIG, head_width=16).head_width == 16
