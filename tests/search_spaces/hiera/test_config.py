"""Errors of wrong configurations of the hiera space."""

import dataclasses
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import HieraConfig

CONFIG = HieraConfig(
    depth=((1, 2), (1,), (1,)),
    width=(16, 32),
    heads=(1, 2),
    mask_unit=4,
    patch_size=2,
    resolution=(16, 32),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": ()}, "depth is empty; a network needs at least one stage"),
        ({"depth": ((1,), (2, 1))}, r"depth\[1\] is \[2, 1\]; expected positive options"),
        ({"depth": ((1,),) * 4}, "mask_unit is 4, but 4 stages halve it 3 times; choose a multip"),
        ({"heads": (3,)}, "3 heads do not divide the width 32"),
        ({"resolution": (4,)}, "images of 4 pixels are smaller than a mask unit of 8 pixels"),
        ({"resolution": (20,)}, "resolution 20 is not a multiple of 8, the pixels of a mask unit"),
        ({"local_stages": (1, 2)}, r"local_stages is \[1, 2\]; expected decreasing whole numbers"),
        ({"local_stages": (4,)}, r"local_stages is \[4\]; expected decreasing .* from 3 to 0"),
        ({"local_stages": ()}, r"local_stages is \[\]; expected decreasing"),
        ({"local_stages": (1.5,)}, r"local_stages is \[1\.5\]; expected decreasing"),
        ({"local_stages": (3,)}, "mask units of stage 3 hold one token"),
        (
            {"local_stages": (2, 1), "resolution": (8, 16)},
            "are the same network at 8 pixels, where one mask unit holds the whole image",
        ),
        ({"mlp_ratio": (2, 2.1)}, r"mlp_ratio \[2, 2\.1\] gives \[32, 32\] hidden channels"),
        ({"position": "sine"}, "position is 'sine'; expected convolution or table"),
        ({"mask_unit": 0}, "mask_unit is 0; expected at least 1"),
    ],
)
def test_hiera_config_refuses_wrong_fields_in_one_line(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        dataclasses.replace(CONFIG, **{"head_width": 0, **change})
    assert len(str(raised.value).splitlines()) == 1
