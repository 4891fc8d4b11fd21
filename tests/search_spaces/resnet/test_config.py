"""Errors of wrong configurations of the resnet space."""

import dataclasses
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import ResNetConfig, ResNetStage, resnet

STAGE = ResNetStage(64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 0}, r"ResNetStage\.channels is 0; expected at least 1"),
        ({"stride": 3}, r"ResNetStage\.stride is 3; expected 1 or 2"),
        ({"block": "wide"}, r"ResNetStage\.block is 'wide'; expected one of bottleneck, basic"),
        ({"depth": ()}, r"ResNetStage\.depth is \[\]; expected positive options"),
        ({"depth": (1.5,)}, r"ResNetStage\.depth is \[1\.5\]; expected whole numbers"),
        ({"depth": (0, 1)}, r"ResNetStage\.depth is \[0, 1\]; expected positive options"),
        ({"expand_ratio": (0.5, 0.25)}, r"ResNetStage\.expand_ratio is \[0\.5, 0\.25\]"),
    ],
)
def test_resnet_stage_refuses_wrong_fields(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(STAGE, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": ()}, "stages is empty"),
        ({"resolution": ()}, r"resolution is \[\]"),
        ({"width": (1.0, 0.5)}, r"width is \[1\.0, 0\.5\]"),
        ({"stem_stride": 3}, "stem_stride is 3 and stem_kernel_size 7; expected a stride of 1, 2"),
        ({"stem_stride": 4, "stem_kernel_size": 3}, "a kernel at least as large"),
        ({"stem_kernel_size": 4}, "stem_kernel_size is 4; expected an odd size"),
        ({"stem_channels": 0}, "stem_channels is 0; expected at least 1"),
        ({"outputs": 0}, "outputs is 0; expected at least 1"),
        ({"dropout": 1.0}, r"dropout is 1\.0; expected a probability in \[0, 1\)"),
        ({"stages": (ResNetStage(64, 2),), "resolution": (7,)}, "strides multiply to 8"),
        (
            {"stages": (ResNetStage(64, expand_ratio=(0.25, 0.26)),)},
            r"stages\[0\]\.expand_ratio \[0\.25, 0\.26\] gives \[16, 16\] channels at width 1",
        ),
        ({"width": (0.99, 1.0)}, r"width \[0\.99, 1\] gives the stem \[64, 64\] channels"),
        (
            {"width": (0.9, 1.0), "stages": (ResNetStage(16),)},
            r"gives stages\[0\] \[16, 16\] channels",
        ),
    ],
)
def test_resnet_config_refuses_wrong_fields_in_one_line(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        dataclasses.replace(ResNetConfig((STAGE,)), **change)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(("preset", "least"), [("tiny", 4), ("small", 6), ("resnet-50", 56)])
def test_resnet_refuses_images_that_are_too_small(preset: str, least: int) -> None:
    resnet((least, least, 1), 10, preset)
    with pytest.raises(ConfigError, match="pixels are too small for the space"):
        resnet((least - 1, least - 1, 1), 10, preset)
    resnet((least - 1, least - 1, 1), 10, preset, resolution=(32,))
    resnet((least - 1, least - 1, 1), 10, preset, stages=(STAGE,), stem_stride=1, stem_pool=False)
