"""Zero-cost proxies: invariants, values computed by hand, and correlation with published ones."""

from __future__ import annotations

import csv
import gzip
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

from hwnas.errors import ConfigError
from hwnas.predictors.features.zero_cost import (
    ZeroCost,
    meco,
    naswot,
    proxies_of,
    synflow,
    zero_cost,
)
from hwnas.search_spaces import CellSpace, SearchSpace, mobilenet

SHAPE = (3, 8, 8)
SPACES: dict[str, SearchSpace] = {
    "mobilenet": mobilenet((8, 8, 3), 10, preset="tiny"),
    "nasbench201": CellSpace((8, 8, 3), channels=4, cells=1),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def drawn(count: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


class Plain(nn.Module):
    """Two convolutions, with an activation that is called as a function."""

    def __init__(self, activation: Callable[[Tensor], Tensor], norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.second = nn.Conv2d(6, 4, 3)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.activation(self.norm(self.first(x)))).mean((2, 3))
        return y


# No side effects, deterministic scores


@every_space
def test_zero_cost_leaves_network_and_random_state_unchanged(space: SearchSpace) -> None:
    network = space.build(space.sample(random.Random(0)))
    network[0].eval() if isinstance(network, nn.Sequential) else network.stem.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    state = torch.get_rng_state()
    zero_cost(network, SHAPE)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(tensor, before[n]) for n, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


@every_space
def test_proxies_are_determined_by_the_seed(space: SearchSpace) -> None:
    architecture = space.sample(random.Random(1))
    first = proxies_of(space, architecture, seed=3)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert proxies_of(space, architecture, seed=3) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert proxies_of(space, architecture, seed=4) != first
    assert list(first.as_dict()) == ["naswot", "synflow", "meco"]


@pytest.mark.slow
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_proxies_are_finite_for_every_network(seed: int) -> None:
    for space in SPACES.values():
        found = proxies_of(space, space.sample(random.Random(seed)), seed)
        assert all(math.isfinite(score) for score in found.as_dict().values())


def test_synflow_of_a_disconnected_cell_is_zero() -> None:
    space = SPACES["nasbench201"]
    assert isinstance(space, CellSpace)
    dead = proxies_of(space, space.architecture_of([3, 3, 3, 0, 0, 0]))
    alive = proxies_of(space, space.architecture_of([3, 3, 3, 3, 0, 0]))
    assert dead.synflow == 0 < alive.synflow
    assert dead.naswot < alive.naswot


# naswot


@pytest.mark.slow
@given(count=st.integers(2, 12), seed=st.integers(0, 1000))
def test_naswot_lies_between_its_bounds_for_equal_and_distinct_codes(count: int, seed: int) -> None:
    network, units = Plain(functional.relu), 6 * 6 * 6
    found = naswot(network, drawn(count, seed))
    assert math.log1p(count * units) <= found <= count * math.log1p(units)
    same = naswot(network, drawn(1, seed).expand(count, *SHAPE))
    assert same == pytest.approx(math.log1p(count * units))


def test_naswot_equals_the_published_log_determinant_plus_identity() -> None:
    network, images = Plain(functional.relu), drawn(8)
    network.norm.train()
    codes = (network.norm(network.first(images)) > 0).flatten(1).double()
    kernel = codes @ codes.T + (1 - codes) @ (1 - codes).T
    assert naswot(network, images) == pytest.approx(kernel.logdet().item(), abs=0.5)
    assert naswot(network, images) == pytest.approx((kernel + torch.eye(8)).logdet().item())


@pytest.mark.parametrize(
    "activation", [nn.Hardswish(), nn.GELU(), functional.silu, torch.relu, Tensor.relu]
)
def test_naswot_is_equal_for_every_activation(
    activation: Callable[[Tensor], Tensor],
) -> None:
    images = drawn(8)
    assert naswot(Plain(activation), images) == naswot(Plain(nn.ReLU(inplace=True)), images)


@pytest.mark.slow
@given(scale=st.floats(0.01, 100))
def test_naswot_is_independent_of_the_weight_scale(scale: float) -> None:
    network, scaled = Plain(functional.relu), Plain(functional.relu)
    with torch.no_grad():
        scaled.second.weight *= scale
    assert naswot(scaled, drawn(8)) == naswot(network, drawn(8))


# synflow


def test_synflow_of_two_layers_equals_the_value_by_hand() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        network[1].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, 4.0]]))
        network[3].weight.copy_(torch.tensor([[-5.0, 6.0]]))
    # The output is 5 (1 + 2) + 6 (3 + 4) = 57, and each of the two layers conserves it.
    assert synflow(network, (2, 1, 1)) == pytest.approx(math.log(1 + 2 * 57))


@pytest.mark.slow
@given(scale=st.floats(0.1, 100))
def test_synflow_grows_with_the_scale_of_each_layer(scale: float) -> None:
    network, scaled = Plain(functional.relu), Plain(functional.relu)
    with torch.no_grad():
        for layer in (scaled.first, scaled.second):
            layer.weight *= scale
    flow, larger = (math.expm1(synflow(n, SHAPE)) for n in (network, scaled))
    assert larger == pytest.approx(flow * scale**2, rel=1e-4)


def test_synflow_ignores_signs_biases_normalisation_and_activation() -> None:
    network, other = Plain(functional.relu), Plain(nn.Hardswish())
    with torch.no_grad():
        other.first.weight *= -1
        other.first.bias += 7
        other.norm.running_mean += 3
        other.norm.weight *= 0.1
    assert synflow(other, SHAPE) == pytest.approx(synflow(network, SHAPE), rel=1e-12)


def test_synflow_of_a_deep_and_wide_network_is_finite() -> None:
    layers = (nn.Conv2d(256, 256, 1, bias=False) for _ in range(120))
    network = nn.Sequential(*layers)
    assert 200 < synflow(network, (256, 1, 1)) < 300  # far beyond float32, whose log ends at 88


def test_synflow_refuses_values_beyond_float64() -> None:
    network = nn.Sequential(*(nn.Conv2d(1, 1, 1) for _ in range(4)))
    with torch.no_grad():
        for layer in network:
            layer.weight.fill_(1e38)
    network.append(nn.Linear(1, 1)).double()
    with torch.no_grad():
        network[4].weight.fill_(1e300)
    with pytest.raises(ConfigError, match="too large for float64"):
        synflow(network, (1, 1, 1))


# meco


def test_meco_is_larger_for_independent_channels() -> None:
    alike, free = (nn.Conv2d(3, 4, 3) for _ in range(2))
    torch.manual_seed(0)
    with torch.no_grad():
        free.weight.normal_()
        alike.weight.copy_(free.weight[:1].expand(4, 3, 3, 3))
    assert meco(alike, drawn()) == pytest.approx(0, abs=1e-6)
    assert 0.01 < meco(free, drawn()) <= 1


@pytest.mark.slow
@given(scale=st.floats(0.01, 100))
def test_meco_hardly_depends_on_the_scale_of_a_layer(scale: float) -> None:
    network, scaled = Plain(functional.relu, norm=False), Plain(functional.relu, norm=False)
    with torch.no_grad():
        scaled.first.weight *= scale
        scaled.first.bias *= scale
    assert meco(scaled, drawn()) == pytest.approx(meco(network, drawn()), rel=0.2, abs=0.02)


def test_zero_cost_scores_transformers() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
    network = nn.Sequential(nn.Conv2d(3, 16, 2, 2), nn.Flatten(2), Transposed(), layer)
    found = zero_cost(network, SHAPE)
    assert 0 < found.meco <= 3
    assert found.synflow > 0


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


# Refusals


def test_proxies_refuse_networks_without_the_layers_they_need() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(ConfigError, match="has no activation such as relu"):
        naswot(linear, drawn())
    with pytest.raises(ConfigError, match="has no convolution"):
        meco(linear, drawn())
    with pytest.raises(ConfigError, match="has no weights"):
        synflow(nn.ReLU(), SHAPE)


def test_proxies_refuse_images_of_another_shape() -> None:
    network = Plain(functional.relu)
    with pytest.raises(ConfigError, match=r"expected \(N, C, H, W\) with N at least 2"):
        naswot(network, drawn(1))
    with pytest.raises(ConfigError, match=r"expected \(N, \*\(3, 9, 9\)\)"):
        zero_cost(network, (3, 9, 9), drawn())
    with pytest.raises(ConfigError, match=r"Plain cannot run on images of \(1, 5, 8, 8\)"):
        synflow(network, (5, 8, 8))


# Ranking of networks


@pytest.mark.slow
def test_naswot_and_synflow_are_higher_for_the_largest_network() -> None:
    space = mobilenet((32, 32, 3), 10, preset="small")
    small, large = (proxies_of(space, a) for a in (space.smallest(), space.largest()))
    assert small.naswot < large.naswot
    assert small.synflow < large.synflow


def published(count: int) -> tuple[list[list[int]], dict[str, list[float]]]:
    folder = Path(os.environ.get("HWNAS_DATA", "no-such-folder")) / "latency"
    if not folder.exists():
        pytest.skip("HWNAS_DATA names no folder with latency tables")
    with gzip.open(folder / "nasbench201_archs.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    chosen = random.Random(0).sample(range(len(rows)), count)
    with np.load(folder / "nasbench201_zcp.npz") as table:
        columns, scores = [str(c) for c in table["columns"]], table["cifar100"]
    known = {name: scores[chosen, columns.index(name)].tolist() for name in columns}
    known["accuracy"] = [float(rows[i]["c100_test_acc"]) for i in chosen]
    return [[int(rows[i][f"op{k}"]) for k in range(6)] for i in chosen], known


@pytest.mark.exhaustive
def test_proxies_rank_nasbench201_networks_as_published() -> None:
    codes, known = published(50)
    space = CellSpace(outputs=100)
    scores: list[ZeroCost] = [proxies_of(space, space.architecture_of(row)) for row in codes]

    def rho(name: str, other: str) -> float:
        return float(spearmanr([getattr(s, name) for s in scores], known[other]).statistic)

    assert rho("naswot", "naswot") > 0.9
    assert rho("synflow", "log_synflow") > 0.9
    assert rho("naswot", "accuracy") > 0.6
    assert rho("synflow", "accuracy") > 0.6
    assert rho("meco", "accuracy") > 0.6
