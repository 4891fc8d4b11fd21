from __future__ import annotations

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.search.objectives.front import Losses, hypervolume
from hwnas.search.samplers import History, SpaceFeatures
from hwnas.search.samplers.growth import Growth
from hwnas.search_spaces.tabular import Codes

FEATURES = SpaceFeatures({f"x{i}": range(4) for i in range(10)})
REFERENCE = np.array([1.1, 1.1])


def useful(codes: Codes) -> Losses:
    """Return losses in which only the first half of the choices help, but all add cost."""
    shares = np.array([0.26, 0.23, 0.2, 0.17, 0.14])[: codes.shape[1]]
    return np.column_stack([(1 - codes[:, :5] @ shares / 3) ** 2, codes.mean(1) / 3])


def seen(codes: Codes, violations: Losses | None = None) -> History:
    missed = np.zeros((len(codes), 0)) if violations is None else violations
    labels = tuple(f"limit{i}" for i in range(missed.shape[1]))
    keys = frozenset(row.tobytes() for row in codes)
    return History(codes, useful(codes), np.ones(2), labels, missed, keys)


def searched(sampler: Growth, features: SpaceFeatures, trials: int) -> Codes:
    sampler.features = features
    codes = np.zeros((0, len(features.sizes)), dtype=np.int64)
    while len(codes) < trials:
        rng = np.random.default_rng([sampler.seed, len(codes)])
        codes = np.vstack([codes, sampler.plan(features, seen(codes), sampler.batch, rng)])
    return codes


def steps_to(codes: Codes, child: Codes) -> Codes:
    """Return the number of steps from each network to the child."""
    return np.abs(codes - child).sum(1)


def test_growth_proposes_mostly_one_step_children() -> None:
    codes = searched(Growth(), FEATURES, 100)
    one_step = [
        ((child >= codes[:i]).all(1) & (steps_to(codes[:i], child) == 1)).any()
        for i, child in enumerate(codes)
    ]
    assert np.mean(one_step[20:]) > 0.6


def test_growth_learns_which_moves_improve_the_front() -> None:
    sampler = Growth()
    codes = searched(sampler, FEATURES, 200)
    bandit = sampler._bandit(seen(codes))
    tried = bandit.successes + bandit.failures
    assert bandit.successes[:5].sum() / tried[:5].sum() > 0.2
    assert bandit.successes[5:10].sum() / tried[5:10].sum() < 0.1
    assert tried[:5].mean() > 1.5 * tried[5:10].mean()
    assert codes[100:, :5].mean() > codes[100:, 5:].mean() + 0.5


def test_growth_finds_more_hypervolume_than_random_search() -> None:
    for seed in range(3):
        codes = searched(Growth(seed), FEATURES, 100)
        drawn = FEATURES.draw(100, np.random.default_rng(seed))
        by_chance = hypervolume(useful(drawn), REFERENCE)
        assert hypervolume(useful(codes), REFERENCE) > by_chance + 0.05


def test_growth_proposes_no_network_twice_before_all_are_proposed() -> None:
    features = SpaceFeatures({f"x{i}": range(3) for i in range(4)})
    codes = searched(Growth(batch=9), features, 81)
    assert len(np.unique(codes, axis=0)) == 81


def test_growth_extends_the_least_violating_network_if_none_is_feasible() -> None:
    rng = np.random.default_rng(0)
    codes = FEATURES.draw(8, rng)
    codes[3] = 2
    violations = np.where((codes == 2).all(1), 1.0, 5.0)[:, None]
    sampler = Growth(features=FEATURES)
    children, _ = sampler._children(FEATURES, seen(codes), codes[3:4])
    planned = sampler.plan(FEATURES, seen(codes, violations), 4, rng)
    known = {row.tobytes() for row in children}
    assert sum(row.tobytes() in known for row in planned) >= 2


def test_growth_makes_no_move_in_an_inactive_choice() -> None:
    """x1 is inactive if x0 is 0."""

    def canonical(codes: Codes) -> Codes:
        found = codes.copy()
        found[found[:, 0] == 0, 1] = 0
        return found

    features = SpaceFeatures({"x0": range(2), "x1": range(3), "x2": range(2)}, canonical=canonical)
    sampler = Growth(features=features)
    parent = np.array([[0, 0, 0]])
    history = History(parent, np.zeros((1, 2)), np.ones(2), (), np.zeros((1, 0)), frozenset())
    children, arms = sampler._children(features, history, parent)
    assert arms.tolist() == [0, 2]
    assert children.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_growth_refuses_options_out_of_range() -> None:
    with pytest.raises(ConfigError, match="roots is 0; expected at least 1"):
        Growth(roots=0)
