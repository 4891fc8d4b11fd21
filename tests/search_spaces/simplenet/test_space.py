"""Networks of the simplenet space; test_space_conformance.py has the checks of every space."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from hwnas.deploy import export_onnx
from hwnas.errors import ConfigError
from hwnas.search_spaces import Group, SimpleNetSpace, simplenet
from hwnas.search_spaces.registry import named_space

PUBLISHED = simplenet((32, 32, 3), 10, preset="simplenet-5m")


def network_of(space: SimpleNetSpace) -> nn.Module:
    with torch.device("meta"):
        return space.build(space.largest())


def weights(network: nn.Module) -> int:
    """Return the number of weights of convolutions and the linear layer, as the paper counts them.

    It counts neither biases nor normalisations.
    """
    layers = (m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    return sum(layer.weight.numel() for layer in layers)


def test_preset_simplenet_5m_has_the_costs_of_the_published_network() -> None:
    """5.48 M parameters (paper, tables of CIFAR results), 652 M operations (table 1)."""
    assert (PUBLISHED.choices, PUBLISHED.size()) == ((), 1)
    network, workload = network_of(PUBLISHED), PUBLISHED.workload(PUBLISHED.largest())
    assert weights(network) == 5_484_736
    assert workload.macs == 652_151_296
    # The authors' PyTorch version has these and a redundant bias in each of 13 convolutions.
    biases = sum(m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d))
    assert workload.params + biases == 5_498_378


def test_preset_simplenet_5m_has_the_layers_of_the_authors() -> None:
    found = [
        (m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0])
        for m in network_of(PUBLISHED).modules()
        if isinstance(m, nn.Conv2d)
    ]
    made = (64, 128, 128, 128, 128, 128, 256, 256, 256, 512, 2048, 256, 256)
    kernels = (3,) * 10 + (1, 1, 3)
    assert found == [(*each, 1) for each in zip((3, *made), made, kernels, strict=False)]


def test_preset_simplenet_310k_has_the_weights_of_the_published_network() -> None:
    """Table 6 of the paper."""
    assert weights(network_of(simplenet((32, 32, 3), 10, preset="simplenet-310k"))) == 309_568


@pytest.mark.parametrize(("preset", "count"), [("full", 5_484_736), ("slim", 309_568)])
def test_largest_simplenet_has_the_weights_of_the_published_network(
    preset: str, count: int
) -> None:
    space = simplenet((32, 32, 3), 10, preset=preset)
    assert weights(network_of(space)) == count
    with torch.device("meta"):
        assert weights(space.build(space.smallest())) < count / 15
    assert space.input_shape(space.largest()) == (3, 32, 32)


def test_simplenet_preset_follows_the_image_size() -> None:
    def layers(side: int) -> int:
        space = simplenet((side, side, 1), 10)
        return int(space.depth(np.array([space.encode(space.largest())]))[0])

    assert [layers(side) for side in (8, 28, 32)] == [9, 13, 13]
    assert simplenet((28, 28, 1), 10).config.groups != simplenet((32, 32, 1), 10).config.groups


def test_simplenet_depth_counts_convolutions() -> None:
    space = simplenet((20, 20, 3), 4, preset="slim")
    for seed in range(5):
        architecture = space.sample(random.Random(seed))
        convolutions = sum(isinstance(m, nn.Conv2d) for m in space.build(architecture).modules())
        assert space.depth(np.array([space.encode(architecture)])).tolist() == [convolutions]


def test_simplenet_dropout_acts_in_training_only() -> None:
    space = simplenet((8, 8, 1), 10, dropout=0.5)
    torch.manual_seed(0)
    network, images = space.build(space.smallest()), torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        assert (network.train()(images) != network(images)).any()
        torch.testing.assert_close(network.eval()(images), network(images))


@pytest.mark.parametrize("seed", [0, 1])
def test_simplenet_export_equals_the_network(seed: int, tmp_path: Path) -> None:
    """Compare at sizes that max pooling does not halve evenly: 10, 5, 3, 2 pixels."""
    space = simplenet((10, 10, 1), 10, resolution=(10,))
    torch.manual_seed(seed)
    network = space.supernet().extract(space.sample(random.Random(seed))).eval()
    images = torch.randn(3, 1, 10, 10)
    path = export_onnx(network, (1, 10, 10), tmp_path / "network.onnx", traceable=True).path
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = network(images).numpy()
    found = session.run(None, {"images": images.numpy()})[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_simplenet_size_counts_the_options_of_custom_groups() -> None:
    groups = (Group((16, 16), depth=(1, 2), width=(0.5, 1)), Group((16,), (5,)))
    space = simplenet((4, 4, 1), 3, groups=groups, resolution=(4,))
    assert space.size() == 2 + 2 * 2  # widths of one layer, or of two


def test_named_space_makes_a_simplenet_space_from_tables_of_groups() -> None:
    groups = [{"channels": [16, 32], "depth": [1, 2]}, {"channels": [32], "kernel_size": [5]}]
    space = named_space("simplenet", (8, 8, 1), 3, {"groups": groups, "resolution": [8]})
    assert space.size() == 2
    with pytest.raises(ConfigError, match=r"Group.width has 2; expected shares"):
        named_space("simplenet", (8, 8, 1), 3, {"groups": [{"channels": [8], "width": [2]}]})


def test_simplenet_refuses_small_images_and_unknown_presets() -> None:
    with pytest.raises(ConfigError, match="images of 6 pixels are too small for the space"):
        simplenet((6, 6, 1), 10)
    with pytest.raises(ConfigError, match="unknown preset of space simplenet 'ful'"):
        simplenet((32, 32, 3), 10, preset="ful")
