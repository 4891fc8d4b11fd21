"""Errors of wrong configurations of the mobilenet space."""

import dataclasses
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import MobileNetConfig, Stage

STAGE = Stage(16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 0}, r"Stage\.channels is 0; expected at least 1"),
        ({"stride": 3}, r"Stage\.stride is 3; expected 1 or 2"),
        ({"kernel_size": (3, 4)}, r"Stage\.kernel_size is \(3, 4\); kernels must be odd"),
        ({"depth": ()}, r"Stage\.depth is \[\]; expected positive options"),
        ({"depth": (1, 1.5)}, r"Stage\.depth is \[1, 1\.5\]; expected whole numbers"),
        ({"kernel_size": (3.5,)}, r"Stage\.kernel_size is \[3\.5\]; expected whole numbers"),
        ({"depth": (0, 1)}, r"Stage\.depth is \[0, 1\]; expected positive options"),
        ({"kernel_size": (5, 3)}, r"Stage\.kernel_size is \[5, 3\]; expected positive options"),
        ({"expand_ratio": (3, 3)}, r"Stage\.expand_ratio is \[3, 3\]; expected positive options"),
        ({"expand_ratio": (float("nan"),)}, r"Stage\.expand_ratio is \[nan\]"),
        ({"activation": "swish"}, r"Stage\.activation is 'swish'; expected relu, relu6 or hard"),
    ],
)
def test_stage_refuses_wrong_fields(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(STAGE, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": ()}, "stages is empty"),
        ({"resolution": (0,)}, r"resolution is \[0\]"),
        ({"width": (1.0, 0.5)}, r"width is \[1\.0, 0\.5\]"),
        ({"stem_stride": 4}, "stem_stride is 4; expected 1 or 2"),
        ({"in_channels": 0}, "in_channels is 0; expected at least 1"),
        ({"outputs": 0}, "outputs is 0; expected at least 1"),
        ({"dropout": 1.0}, r"dropout is 1\.0; expected a probability in \[0, 1\)"),
        ({"stages": (Stage(16, 2), Stage(16, 2)), "resolution": (7,)}, "strides multiply to 8"),
        (
            {"stages": (Stage(16, expand_ratio=(2, 2.1)),)},
            r"stages\[0\]\.expand_ratio \[2, 2\.1\] gives \[32, 32\] hidden channels of 16",
        ),
        (
            {"stages": (Stage(16, expand_ratio=(0.5, 1)),)},
            r"at 1 a block of 16 channels has no expansion layer, but .* add a larger one",
        ),
        ({"resolution": (7.5,)}, r"resolution is \[7\.5\]; expected whole numbers"),
        ({"activation": "gelu"}, "activation is 'gelu'; expected relu, relu6 or hard_swish"),
        ({"feature_channels": -1}, "feature_channels is -1; expected at least 0"),
        (
            {"stages": (Stage(40, operators=("skip", "k3_e2")),)},
            r"stages\[0\]\.operators may skip a block that takes 16 channels and gives 40",
        ),
        ({"width": (0.999, 0.9999)}, "two of them round to the same channels"),
    ],
)
def test_mobilenet_config_refuses_wrong_fields_in_one_line(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        dataclasses.replace(MobileNetConfig((STAGE,)), **change)
    assert len(str(raised.value).splitlines()) == 1
