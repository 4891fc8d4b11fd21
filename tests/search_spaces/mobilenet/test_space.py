"""The mobilenet space: published sizes and presets."""

import dataclasses
import random
from typing import Any

import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search_spaces import MobileNetConfig, MobileNetSpace, Stage, mobilenet, trace

STAGE = Stage(16)


@pytest.mark.parametrize(
    ("size", "params", "least_macs", "most_macs"),
    [("large", 5_483_032, 217e6, 219e6), ("small", 2_542_856, 56e6, 57e6)],
)
def test_preset_mobilenet_v3_has_the_costs_of_the_published_network(
    size: str, params: int, least_macs: float, most_macs: float
) -> None:
    """5.4 M parameters and 219 M MACs, 2.5 M and 56 M, in Howard et al. 2019, tables 3 and 4.

    The exact numbers of parameters are those of torchvision 0.28's networks.
    """
    space = mobilenet((224, 224, 3), 1000, preset=f"mobilenet-v3-{size}")
    assert space.choices == ()
    assert space.size() == 1
    with torch.device("meta"):
        network = space.build(space.largest())
    workload = trace(network, space.input_shape(space.largest()))
    assert workload.params == params
    assert least_macs <= workload.macs <= most_macs


def test_mutate_returns_the_only_network_of_a_space() -> None:
    space = mobilenet((224, 224, 3), 1000, preset="mobilenet-v3-large")
    only = space.largest()
    assert space.mutate(only, random.Random(0)) == only == space.smallest()


@pytest.mark.parametrize(
    ("side", "preset"),
    [(8, "tiny"), (16, "tiny"), (28, "small"), (96, "small"), (97, "large"), (224, "large")],
)
def test_mobilenet_preset_follows_the_image_size(side: int, preset: str) -> None:
    automatic = mobilenet((side, side, 3), 10)
    assert automatic.config == mobilenet((side, side, 3), 10, preset=preset).config
    assert automatic.input_shape(automatic.largest())[1] >= side


def test_mobilenet_preset_follows_the_longer_side_of_images() -> None:
    wide, square = mobilenet((20, 28, 3), 10), mobilenet((28, 28, 3), 10)
    assert dataclasses.replace(wide.config, aspect=(1, 1)) == square.config


def test_mobilenet_has_the_input_channels_and_outputs_of_the_task() -> None:
    space = mobilenet((8, 8, 2), 7)
    smallest = space.smallest()
    assert space.input_shape(smallest) == (2, 8, 8)
    outputs = space.build(smallest).eval()(torch.zeros(3, 2, 8, 8))
    assert outputs.shape == (3, 7)


def test_mobilenet_options_override_the_preset() -> None:
    space = mobilenet((28, 28, 1), 10, stem_stride=2, width=(1.0,), stages=(STAGE,), dropout=0.3)
    assert space.config.stem_stride == 2
    assert space.config.stages == (STAGE,)
    assert space.config.head_channels == mobilenet((28, 28, 1), 10).config.head_channels
    assert [choice.name for choice in space.choices] == ["resolution"]


def test_mobilenet_refuses_an_unknown_preset_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        mobilenet((28, 28, 1), 10, preset="smal")


@pytest.mark.parametrize("preset", ["tiny", "small", "large", "mobilenet-v3-large"])
@pytest.mark.parametrize("side", [1, 2, 3])
def test_mobilenet_refuses_images_that_are_too_small(preset: str, side: int) -> None:
    with pytest.raises(ConfigError, match="pixels are too small for the space"):
        mobilenet((side, side, 1), 10, preset=preset)


@pytest.mark.parametrize("side", [1, 3, 8, 32])
def test_preset_mobilenet_v3_small_accepts_images_of_any_size(side: int) -> None:
    space = mobilenet((side, side, 1), 10, preset="mobilenet-v3-small")
    network = space.build(space.largest()).eval()
    assert network(torch.zeros(2, 1, side, side)).shape == (2, 10)


def test_mobilenet_space_treats_whole_floats_as_integers() -> None:
    """A recipe's 3 may arrive as 3.0; the run must still fit to its architectures."""
    a = MobileNetSpace(MobileNetConfig((Stage(16, expand_ratio=(3, 6)),), width=(1,)))
    b = MobileNetSpace(MobileNetConfig((Stage(16, expand_ratio=(3.0, 6.0)),), width=(1.0,)))
    assert a.fingerprint == b.fingerprint
    assert a.largest().id == b.largest().id


@pytest.mark.parametrize("change", [{"outputs": 9}, {"dropout": 0.2}, {"head_channels": 128}])
def test_mobilenet_space_fingerprint_depends_on_the_config(change: dict[str, Any]) -> None:
    config = MobileNetConfig((STAGE,))
    other = MobileNetSpace(dataclasses.replace(config, **change))
    assert other.fingerprint != MobileNetSpace(config).fingerprint


def test_mobilenet_supernet_runs_networks_of_every_width() -> None:
    """Rounded channels of the narrow network never exceed those of the wide one."""
    space = mobilenet((28, 28, 1), 10, width=(0.35, 0.6, 1.4))
    supernet = space.supernet().eval()
    rng = random.Random(0)
    for _ in range(5):
        architecture = space.sample(rng)
        supernet.activate(architecture)
        with torch.no_grad():
            supernet(torch.zeros(1, *space.input_shape(architecture)))
