"""Spaces of channel ratios; test_space_conformance.py has the checks of every space."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.deploy import export_onnx
from hwnas.errors import ConfigError
from hwnas.search_spaces import ChannelSpace, channels, mobilenet
from hwnas.search_spaces.registry import named_space


class Mixed(nn.Module):
    """Model with concatenation, group normalisation, a transposed convolution and flattening."""

    def __init__(self, outputs: int, wide: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, wide, 3, 2, 1)
        self.norm = nn.GroupNorm(4, wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.lower = nn.Sequential(nn.Conv2d(wide, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.PReLU(32))
        self.up = nn.ConvTranspose2d(32, 24, 2, 2)
        self.mix = nn.Conv2d(wide + 24, 16, 1)
        self.classifier = nn.Linear(16 * 4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = x + self.depthwise(x)
        x = self.mix(torch.cat([x, self.up(self.lower(x))], dim=1))
        outputs: Tensor = self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 2), 1))
        return outputs


def shipped(image_shape: tuple[int, int, int], outputs: int) -> nn.Module:
    space = mobilenet(image_shape, outputs)
    return space.build(space.largest())


def stiff() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 10, 3))


class Narrowing(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return self[1](x.mean(2, keepdim=True))


def too_small() -> nn.Module:
    return Narrowing(nn.Conv2d(1, 8, 1), nn.Conv2d(1, 8, 3))


def number() -> int:
    return 3


def broken() -> nn.Module:
    raise KeyError("no such variant")


def own(model: object, **options: object) -> ChannelSpace:
    name = f"{__name__}:{getattr(model, '__name__', model)}"
    return channels((8, 8, 1), 10, model=name, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_largest_network_of_a_channel_space_equals_the_model() -> None:
    space = channels((32, 32, 3), 10)
    torch.manual_seed(0)
    model = space.config.make()
    torch.manual_seed(0)
    largest = space.build(space.largest())
    assert space.workload(space.largest()).params == 272_474  # ResNet-20 with projections
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(largest(images), model(images), rtol=0, atol=0)


def test_channel_ratio_narrows_its_layer_and_the_connected_ones() -> None:
    space = own(Mixed, ratios=(0.5, 1))
    values = {choice.name: choice.options[-1] for choice in space.choices}
    network = space.build(space.architecture({**values, "lower.0.ratio": 0.5}))
    assert isinstance(network, Mixed)
    lower, norm, activation = network.lower
    assert (lower.out_channels, norm.num_features, activation.num_parameters) == (16, 16, 16)
    assert network.up.in_channels == 16
    assert network.up.weight.shape == (16, 24, 2, 2)
    assert network.mix.in_channels == 40


@pytest.mark.slow
@pytest.mark.parametrize("model", [Mixed, shipped])
@pytest.mark.parametrize("seed", [0, 1])
def test_channel_space_extracted_network_equals_the_active_one(model: object, seed: int) -> None:
    space = own(model)
    torch.manual_seed(seed)
    supernet, architecture = space.supernet(), space.sample(random.Random(seed))
    supernet.activate(architecture)
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        supernet.train()(images)  # changes the running statistics
        network = supernet.eval().extract(architecture)
        expected = network(images)
        torch.testing.assert_close(supernet(images), expected, rtol=1e-5, atol=1e-5)
    assert not any("mask" in name for name in network.state_dict())


@pytest.mark.slow
def test_channel_space_export_equals_the_network(tmp_path: Path) -> None:
    space = own(Mixed)
    torch.manual_seed(0)
    network = space.supernet().extract(space.sample(random.Random(0))).eval()
    images = torch.randn(3, 1, 8, 8)
    path = export_onnx(network, (1, 8, 8), tmp_path / "network.onnx").path
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = network(images).numpy()
    found = session.run(None, {"images": images.numpy()})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_narrow_network_begins_with_outputs_of_similar_size() -> None:
    """Weights that sum over fewer channels are larger, as after an initialisation of their own."""
    space = channels((16, 16, 3), 10, model="simplenet-310k")
    torch.manual_seed(0)
    images = torch.randn(64, 3, 16, 16)
    with torch.no_grad():
        spread = [
            space.build(architecture).train()(images).std()
            for architecture in (space.smallest(), space.largest())
        ]
    assert 0.5 < spread[0] / spread[1] < 2


def test_channels_are_multiples_of_divisor_and_normalisation_groups() -> None:
    space = own(Mixed, ratios=(0.3, 0.6, 1), divisor=1)
    found = space.channels_of(space.smallest())
    assert found == {"first": 4, "lower.0": 10, "up": 7, "mix": 5}
    rounded = own(Mixed, ratios=(0.3, 0.6, 1))
    assert set(rounded.channels_of(rounded.smallest()).values()) == {8}


def test_channel_ratios_that_round_to_equal_channels_are_one_option() -> None:
    space = own(Mixed, ratios=(0.25, 0.5, 0.75, 1), divisor=16)
    options = {choice.name: choice.options for choice in space.choices}
    assert options == {"lower.0.ratio": (0.5, 1), "up.ratio": (0.75, 1)}


def test_named_space_makes_a_channel_space_from_model_and_options() -> None:
    options = {"model": f"{__name__}:Mixed", "options": {"wide": 32}, "ratios": [0.5, 1.0]}
    space = named_space("channels", (8, 8, 1), 3, options)
    assert isinstance(space, ChannelSpace)
    assert space.groups[0].channels == 32
    with torch.no_grad():
        assert space.build(space.smallest())(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    narrower = named_space("channels", (8, 8, 1), 3, {**options, "options": {"wide": 16}})
    assert narrower.fingerprint != space.fingerprint


@pytest.mark.parametrize("ratios", [(0.0, 1), (0.5, 1.5), (-0.5,), (float("nan"),)])
def test_channels_refuses_a_ratio_out_of_range(ratios: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"ratios has .*; expected shares .* in \(0, 1\]"):
        channels((32, 32, 3), 10, ratios=ratios)


@pytest.mark.parametrize("ratios", [(), (1, 0.5), (0.5, 0.5)])
def test_channels_refuses_ratios_that_do_not_increase(ratios: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="expected at least one, increasing"):
        channels((32, 32, 3), 10, ratios=ratios)


def test_channels_refuses_unusable_models() -> None:
    with pytest.raises(ConfigError, match=r"unknown model of space channels 'resnet2'.*resnet20"):
        channels((32, 32, 3), 10, model="resnet2")
    with pytest.raises(ConfigError, match=r"no channels that can be cropped: 0 .*outputs"):
        own(stiff)
    with pytest.raises(ConfigError, match=r"Narrowing does not run .*\(in '1', .* line \d+\)"):
        own(too_small)
    with pytest.raises(ConfigError, match=r"cannot be built .KeyError: 'no such variant'"):
        own(broken)
    with pytest.raises(ConfigError, match=r"\[space\.options\] has no key 'colour'"):
        own(Mixed, options={"colour": 1})
    with pytest.raises(ConfigError, match="gives a int; expected a function that returns"):
        own(number)


class Activated(nn.Module):
    """Module whose text contains the address of a function, as in some models."""

    def __init__(self) -> None:
        super().__init__()
        self.apply_to = lambda x: F.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_to(x)

    def extra_repr(self) -> str:
        return f"function={self.apply_to}"


def activated() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 32, 3), Activated(), nn.Flatten(), nn.Linear(32 * 36, 10))


def test_channel_space_fingerprint_ignores_addresses_in_a_model_repr() -> None:
    one, other = own(activated), own(activated)
    assert str(one._blank) != str(other._blank)
    assert one.fingerprint == other.fingerprint
