"""Networks that are generated for wanted costs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search.samplers.base.space_features import PredictedObjective, SpaceFeatures
from hwnas.search.samplers.generative import ConditionalDensity, Generative
from hwnas.search_spaces.tabular import Codes

POSITIONS, OPTIONS = 16, 4
PLAIN = SpaceFeatures({f"p{i:02}": tuple(range(OPTIONS)) for i in range(POSITIONS)})


def cost(codes: Codes) -> np.ndarray:
    return np.exp(codes.sum(1) / 8)


def limited(most: float) -> SpaceFeatures:
    """Return the space with a known cost and a limit on it."""
    return replace(
        PLAIN,
        predict=lambda codes: {1: PredictedObjective(cost(codes), np.zeros(len(codes)))},
        allowed=lambda codes: cost(codes) <= most,
        known_limits=frozenset({"cost"}),
    )


def test_density_is_a_distribution_of_all_codes() -> None:
    density = ConditionalDensity(np.array([2, 3, 1, 2]), 1, seed=0)
    codes = np.array(list(itertools.product(range(2), range(3), range(1), range(2))))
    for condition in (-1.0, 2.0):
        chances = np.exp(density.log_chances(codes, np.full((len(codes), 1), condition)))
        assert chances.sum() == pytest.approx(1, abs=1e-5)


def test_density_learns_how_options_depend_on_each_other_and_on_the_condition() -> None:
    """The second option is the first one if the condition is positive, else the other one."""
    rng = np.random.default_rng(0)
    first, sign = rng.integers(0, 2, 400), rng.choice([-1.0, 1.0], 400)
    codes = np.column_stack([first, np.where(sign > 0, first, 1 - first)])
    density = ConditionalDensity(np.array([2, 2]), 1, seed=0)
    density.fit(codes, sign[:, None], np.ones(400), 200, rng)
    drawn = density.drawn(np.ones((200, 1)), rng)
    assert (drawn[:, 0] == drawn[:, 1]).mean() > 0.9
    assert 0.3 < drawn[:, 0].mean() < 0.7
    drawn = density.drawn(-np.ones((200, 1)), rng)
    assert (drawn[:, 0] != drawn[:, 1]).mean() > 0.9


def test_density_of_an_option_does_not_depend_on_later_ones() -> None:
    density = ConditionalDensity(np.array([3, 3, 3]), 0, seed=1)
    with torch.no_grad():
        density.skip.normal_()
    codes = np.array(list(itertools.product(range(3), repeat=3)))
    chances = np.exp(density.log_chances(codes, np.empty((27, 0)))).reshape(3, 3, 3)
    assert chances.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("most", [np.exp(12 / 8), np.exp(4 / 8)])
def test_most_generated_networks_meet_limits_that_hardly_any_network_meets(most: float) -> None:
    """Of random networks, 0.3 % and one of 800,000 meet the limits."""
    features = limited(most)
    rng = np.random.default_rng(0)
    assert features.allowed(features.draw(20_000, rng)).mean() < 0.01
    generator = Generative(seed=0).generator(features)
    drawn = generator.model.drawn(generator.wanted(500, rng), rng)
    assert features.allowed(drawn).mean() > 0.5
    assert len(np.unique(drawn, axis=0)) > 100


@pytest.mark.parametrize("options", [{"good": 0.0}, {"good": 1.0}, {"draws": 0}])
def test_generative_refuses_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="sampler generative: good is"):
        Generative(**options)  # type: ignore[arg-type]
