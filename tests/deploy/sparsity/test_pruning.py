"""Pruning of whole networks, and the search for densities of their layers."""

import copy
import itertools
import random

import pytest
import torch
from torch import Tensor, nn

from hwnas.deploy.sparsity import SparsitySettings, prune_network
from hwnas.deploy.sparsity.distribution import Grid, additive, evolved, search_densities
from hwnas.deploy.sparsity.hessian import input_hessian
from hwnas.deploy.sparsity.layerwise import pruned_matrix
from hwnas.deploy.sparsity.matrices import prunable_layers
from hwnas.deploy.sparsity.supernet import DensitySupernet
from hwnas.errors import ArtifactError, ConfigError


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10),
    ).eval()  # fmt: skip


@pytest.fixture
def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 3, 8, 8, generator=generator) for _ in range(2)]


def words(text: str) -> SparsitySettings:
    return SparsitySettings.parse(text.split("-"))


@pytest.mark.parametrize(
    ("settings", "pruned", "density"),
    [
        ("unstructured-25", ["0", "6", "8"], 0.25),
        ("2of4-wanda", ["6", "8"], 0.5),
        ("block8x16-50-magnitude", ["6"], 0.5),
        ("unstructured-50-refined", ["0", "6", "8"], 0.5),
    ],
)
def test_pruned_network_has_the_density_in_all_layers_that_fit(
    network: nn.Module, batches: list[Tensor], settings: str, pruned: list[str], density: float
) -> None:
    before = copy.deepcopy(network.state_dict())
    network.train()
    found = prune_network(network, batches, words(settings))
    assert list(found.masks) == pruned
    assert found.density == pytest.approx(density, abs=0.01)
    assert set(found.dense) | set(pruned) == {"0", "3", "6", "8"}
    for name, mask in found.masks.items():
        weight = network.get_submodule(name).weight
        assert weight.shape == mask.shape
        assert (weight[~mask] == 0).all()
    for name, tensor in network.state_dict().items():
        if name.removesuffix(".weight") not in pruned:
            assert torch.equal(tensor, before[name])
    assert network[1].training  # as it was given, and its statistics unchanged


def test_network_without_a_layer_of_the_structure_is_refused(batches: list[Tensor]) -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(180, 3))
    with pytest.raises(ArtifactError, match=r"no layer .* structure block8x8; choose another"):
        prune_network(network, batches, words("block8x8"))


@pytest.fixture
def three_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)
    ).eval()


def test_searched_densities_are_as_good_as_the_best_of_all(
    three_layers: nn.Module, batches: list[Tensor]
) -> None:
    settings = words("unstructured-25-searched")
    layers = prunable_layers(three_layers, settings.structure)
    supernet = DensitySupernet(three_layers, layers, batches, settings)
    levels = (0.0625, 0.125, 0.25, 0.375, 0.5)
    supernet.build(dict.fromkeys(supernet.names, levels))
    grid = Grid(supernet, (levels,) * 3)
    uniform = (2, 2, 2)
    found = evolved(grid, [uniform, additive(grid, uniform)], random.Random(0))
    all_that_fit = filter(grid.fits, itertools.product(range(5), repeat=3))
    best = min(map(grid.error, all_that_fit))
    assert grid.fits(found)
    assert best <= grid.error(found) <= 1.05 * best
    assert grid.error(found) < 0.8 * grid.error(uniform)


@pytest.mark.parametrize("settings", ["unstructured-25-searched", "unstructured-25-searched-macs"])
def test_search_keeps_the_budget_and_the_weights(
    network: nn.Module, batches: list[Tensor], settings: str
) -> None:
    before = copy.deepcopy(network.state_dict())
    layers = prunable_layers(network, words(settings).structure)
    supernet = DensitySupernet(network, layers, batches, words(settings))
    found = search_densities(supernet, intervals=(1 / 8,))
    assert 0.5 * supernet.budget < supernet.cost(found) <= supernet.budget * (1 + 1e-9)
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())
    assert search_densities(supernet, intervals=(1 / 8,)) == found


def test_macs_count_positions_of_convolutions(network: nn.Module, batches: list[Tensor]) -> None:
    settings = words("unstructured-25-searched-macs")
    layers = prunable_layers(network, settings.structure)
    supernet = DensitySupernet(network, layers, batches, settings)
    assert supernet.costs == {"0": 6 * 6 * 8 * 27, "6": 32 * 16, "8": 16 * 10}


def test_supernet_prunes_a_layer_for_the_mean_of_the_versions_before_it(
    three_layers: nn.Module, batches: list[Tensor]
) -> None:
    settings = words("unstructured-25")
    layers = prunable_layers(three_layers, settings.structure)
    supernet = DensitySupernet(three_layers, layers, batches, settings)
    supernet.build(dict.fromkeys(supernet.names, (0.25, 1.0)))
    first = layers["1"]
    with torch.no_grad():
        dense = first.weight.clone()
        supernet.error({"1": 0.25})  # loads this version
        mean = (first.weight + dense) / 2
        supernet.error({"3": 0.25})
        found = layers["3"].weight.clone()
        supernet.restore()
        first.weight.copy_(mean)
    hessian = input_hessian(three_layers, layers["3"], batches)
    assert hessian is not None
    expected = pruned_matrix(layers["3"], hessian, settings, 0.25).matrix
    torch.testing.assert_close(found, expected)
    assert (found != layers["3"].weight).any()


def test_error_of_dense_layers_is_zero(three_layers: nn.Module, batches: list[Tensor]) -> None:
    settings = words("unstructured-25-magnitude")
    layers = prunable_layers(three_layers, settings.structure)
    supernet = DensitySupernet(three_layers, layers, batches, settings)
    supernet.build(dict.fromkeys(supernet.names, (0.5, 1.0)))
    assert supernet.error({}) == supernet.error(dict.fromkeys(supernet.names, 1.0)) == 0
    assert min(supernet.error({name: 0.5}) for name in supernet.names) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2of4-searched", "structure 2of4 fixes the density of every layer"),
        ("unstructured-macs", "'macs' is for searched densities of layers; add 'searched'"),
        ("unstructured-wandas", "neither a density in percent .*; did you mean 'wanda'"),
        ("unstructured-50-25", "unstructured-50-25 names its density twice"),
        ("2of4-25", "density is 0.25, but structure 2of4 keeps exactly 0.5"),
        ("", "unknown sparsity structure ''"),
    ],
)
def test_settings_refuse_what_is_impossible(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        words(text)


@pytest.mark.parametrize("criterion", ["obs", "obs-refined"])
def test_weights_stay_near_the_trained_ones_with_few_samples(criterion: str) -> None:
    """With fewer samples than inputs, weights that fit them exactly could be of any size."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 16)
    generator = torch.Generator().manual_seed(1)
    few = torch.randn(8, 64, generator=generator) * torch.linspace(0.01, 1, 64)
    hessian = input_hessian(nn.Sequential(layer), layer, [few])
    assert hessian is not None
    pruned = pruned_matrix(layer, hessian, words(f"unstructured-50-{criterion}"), 0.5)
    assert pruned.matrix.abs().max() < 3 * layer.weight.abs().max()
