"""The resnet space: the published network and presets.

test_space_conformance.py has the checks of every space.
"""

import random

import numpy as np
import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search_spaces import ResNetSpace, ResNetStage, resnet
from hwnas.search_spaces.registry import named_space


def test_largest_network_of_the_default_resnet_space_is_resnet_50() -> None:
    """4.09 G multiply-accumulates at 224 pixels, 25,557,032 parameters, as in torchvision."""
    space = ResNetSpace()
    largest = space.largest()
    workload = space.workload(largest)
    assert workload.params == 25_557_032
    assert workload.macs == 4_089_184_256
    assert [len(stage.blocks) for stage in space.outline(largest)] == [3, 4, 6, 3]
    assert [stage.channels for stage in space.outline(largest)] == [256, 512, 1024, 2048]


@pytest.mark.parametrize(
    ("side", "preset"), [(8, "tiny"), (16, "tiny"), (32, "small"), (97, "resnet-50")]
)
def test_resnet_preset_follows_the_image_size(side: int, preset: str) -> None:
    assert resnet((side, side, 3), 10).config == resnet((side, side, 3), 10, preset).config


def test_resnet_stages_have_separate_widths() -> None:
    space = resnet((32, 32, 3), 10)
    names = {choice.name for choice in space.choices}
    assert {"stem.width", "stage0.width", "stage1.width", "stage2.width"} <= names
    narrow = space.architecture({**space.largest().as_dict(), "stage1.width": 0.5})
    assert [stage.channels for stage in space.outline(narrow)] == [128, 128, 512]
    outputs = space.build(narrow).eval()(torch.zeros(2, 3, 32, 32))
    assert outputs.shape == (2, 10)


def test_resnet_depth_counts_blocks() -> None:
    space, rng = resnet((32, 32, 3), 10), random.Random(0)
    networks = [space.sample(rng) for _ in range(5)]
    codes = np.array([space.encode(network) for network in networks])
    blocks = [sum(len(stage.blocks) for stage in space.outline(each)) for each in networks]
    assert space.depth(codes).tolist() == blocks


def test_named_space_overrides_the_preset_of_a_resnet_space() -> None:
    options = {
        "preset": "small",
        "width": [1.0],
        "stages": [{"channels": 64, "depth": [1, 2]}],
        "stem_pool": True,
    }
    space = named_space("resnet", (28, 28, 1), 10, options)
    assert isinstance(space, ResNetSpace)
    assert space.config.stages == (ResNetStage(64, depth=(1, 2)),)
    assert [choice.name for choice in space.choices] == ["resolution", "stage0.depth"]
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        resnet((28, 28, 1), 10, preset="smal")
