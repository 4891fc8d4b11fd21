"""Distributions over networks, and the expected cost of a distribution."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search.strategies.additive_cost import AdditiveCost
from hwnas.search.strategies.distribution import ArchitectureDistribution
from hwnas.search_spaces import (
    MobileNetConfig,
    MobileNetSpace,
    SearchSpace,
    Stage,
    mobilenet,
    nasbench201,
)

SPACE = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, 1, (1, 2, 3), (3, 5), (2, 3)),
            Stage(16, 2, operators=("k3_e1_g2", "k3_e3", "k5_e6")),
        ),
        resolution=(8, 10),
        stem_channels=8,
        stem_stride=1,
        head_channels=16,
    )
)
CELLS = nasbench201((8, 8, 3), 4, channels=4, cells=1, operator_weights="own")
SPACES = pytest.mark.parametrize("space", [SPACE, CELLS], ids=["mobilenet", "cells"])


def moved(space: SearchSpace, seed: int) -> ArchitectureDistribution:
    """Return a distribution with random logits."""
    distribution = ArchitectureDistribution(space, 2)
    generator = torch.Generator().manual_seed(seed)
    distribution.logits.value.normal_(0, 2, generator=generator)
    return distribution


@SPACES
def test_probabilities_are_those_of_options_only(space: SearchSpace) -> None:
    rows = moved(space, 0).probabilities
    torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:2]))
    for choice, row in zip(space.choices, rows[0], strict=True):
        assert (row[: len(choice.options)] > 0).all()
        assert not row[len(choice.options) :].any()


def test_sample_draws_options_as_often_as_they_are_probable() -> None:
    distribution, rng = moved(CELLS, 1), random.Random(0)
    drawn = [distribution.indices(distribution.sample(1, rng)) for _ in range(2000)]
    counts = torch.nn.functional.one_hot(torch.stack(drawn), 5).float().mean(0)
    torch.testing.assert_close(counts, distribution.probabilities[1], atol=0.05, rtol=0)


@given(seed=st.integers(0, 1000), data=st.data())
def test_descend_keeps_the_probabilities_of_untouched_options(
    seed: int, data: st.DataObject
) -> None:
    distribution = moved(CELLS, seed)
    touched = torch.zeros_like(distribution.exists)
    for row in touched:
        row[data.draw(st.lists(st.integers(0, 4), min_size=0, max_size=3))] = True
    before = distribution.probabilities.clone()
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(touched.shape, generator=generator)
    for _ in range(3):  # Adam's momentum must not move them either
        distribution.descend(0, gradient, 0.1, touched)
    after = distribution.probabilities
    torch.testing.assert_close(after[0][~touched], before[0][~touched], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after[1], before[1])


@SPACES
def test_descend_makes_the_most_probable_option_follow_the_gradient(space: SearchSpace) -> None:
    distribution = ArchitectureDistribution(space, 1)
    wanted = space.sample(random.Random(3))
    drawn = distribution.indices(wanted)
    gradient = torch.zeros(distribution.exists.shape)
    rows = torch.nonzero(drawn >= 0).flatten()
    gradient[rows, drawn[rows]] = -1.0
    for _ in range(20):
        distribution.descend(0, gradient, 0.1)
    assert distribution.most_probable(0) == wanted


@SPACES
@given(seed=st.integers(0, 1000))
def test_expected_cost_is_exact_for_a_sum_over_choices(space: SearchSpace, seed: int) -> None:
    """Check a cost that is a sum: for each network, and in the mean over a distribution."""
    rng = np.random.default_rng(seed)
    most = max(len(choice.options) for choice in space.choices)
    true = rng.uniform(0, 1, (len(space.choices), most))

    def cost_of(codes: np.ndarray) -> np.ndarray:
        found = []
        for code in codes:
            values = space.decode(code).as_dict()
            found.append(
                5
                + sum(
                    true[i, choice.index(values[choice.name])]
                    for i, choice in enumerate(space.choices)
                    if choice.name in values
                )
            )
        return np.array(found)

    cost, distribution = AdditiveCost.fit(space, cost_of), moved(space, seed)
    networks = [distribution.sample(0, random.Random(i)) for i in range(300)]
    codes = np.array([space.encode(network) for network in networks])
    for network, known in zip(networks[:5], cost_of(codes[:5]), strict=True):
        drawn = distribution.indices(network).clamp_min(0)
        hot = torch.nn.functional.one_hot(drawn, most).float()
        assert float(cost(hot)) == pytest.approx(known, rel=1e-3)
    expected = float(cost(distribution.probabilities[0]))
    costs = cost_of(codes)
    assert expected == pytest.approx(costs.mean(), abs=5 * costs.std() / 300**0.5 + 1e-3)


def test_expected_cost_has_a_gradient_towards_cheaper_options() -> None:
    space = mobilenet((8, 8, 1), 10)
    cost = AdditiveCost.fit(space, lambda codes: space.counted(codes)["macs"].astype(float))
    logits = torch.zeros(len(space.choices), 3, requires_grad=True)
    distribution = ArchitectureDistribution(space, 1)
    (gradient,) = torch.autograd.grad(cost(distribution.of_logits(logits)), logits)
    for choice, row in zip(space.choices, gradient, strict=True):
        if choice.name in ("resolution", "width") or choice.name.endswith("depth"):
            assert row[0] < row[len(choice.options) - 1], choice.name
    assert cost.reference == pytest.approx(float(cost(distribution.probabilities[0])), rel=1e-4)
