"""Errors of wrong configurations of the hybrid space."""

import dataclasses
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import HybridConfig, HybridStage

STAGE = HybridStage(32, 2, (1, 2), ("convolution", "both"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 0}, r"HybridStage\.channels is 0; expected at least 1"),
        ({"stride": 3}, r"HybridStage\.stride is 3; expected 1 or 2"),
        ({"attention_stride": 4}, r"HybridStage\.attention_stride is 4; expected 1 or 2"),
        ({"depth": (1.5,)}, r"HybridStage\.depth is \[1\.5\]; expected whole numbers"),
        ({"depth": (0, 1)}, r"HybridStage\.depth is \[0, 1\]; expected positive options"),
        ({"blocks": ()}, r"blocks is \[\]; expected some of convolution, attention, both"),
        ({"blocks": ("pooling",)}, r"blocks is \['pooling'\]; expected only convolution"),
        ({"blocks": ("both", "both")}, "expected some of convolution, attention, both"),
        ({"blocks": ("convolution", "attention")}, 'the last has to be "both"'),
        ({"fused": "last"}, r"fused is 'last'; expected none, first or all"),
    ],
)
def test_hybrid_stage_refuses_wrong_fields(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(STAGE, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": ()}, "stages is empty"),
        ({"resolution": (3,)}, "images of 3 pixels are too small for .* strides multiply to 4"),
        ({"head_width": 12}, r"heads of 12 channels do not divide half the 32 channels of stages"),
        ({"stem_stride": 4}, "stem_stride is 4; expected 1 or 2"),
        ({"width": (0.999, 1)}, "two of them round to the same channels"),
        (
            {"stages": (HybridStage(32, expand_ratio=(2, 2.1)),)},
            r"stages\[0\]: at width 1 two ratios give equal hidden channels",
        ),
        (
            {"stages": (HybridStage(32, expand_ratio=(0.25, 1)),)},
            r"stages\[0\]\.expand_ratio \[0\.25, 1\]: at 1 a block of 16 channels has no expansion",
        ),
        ({"outputs": 0}, "outputs is 0; expected at least 1"),
        ({"dropout": 1.0}, r"dropout is 1\.0; expected a probability in \[0, 1\)"),
    ],
)
def test_hybrid_config_refuses_wrong_fields_in_one_line(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        dataclasses.replace(HybridConfig((STAGE,)), **change)
    assert len(str(raised.value).splitlines()) == 1
