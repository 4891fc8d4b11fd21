from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.search.objectives.front import Losses, hypervolume
from hwnas.search.samplers import History, SpaceFeatures
from hwnas.search.samplers.reinforce import Reinforce
from hwnas.search_spaces.tabular import Codes

SMALL = SpaceFeatures({f"x{i}": range(4) for i in range(6)})
LARGE = SpaceFeatures({f"x{i}": range(4) for i in range(12)})
REFERENCE = np.array([1.1, 1.1])


def two_sided(codes: Codes) -> Losses:
    """Return two conflicting quadratic losses: one falls with the size, the other grows."""
    size = codes.mean(1) / 3
    off = (codes[:, ::2] != codes[:, 1::2]).mean(1)  # and pairs should be alike
    return np.column_stack([(1 - size) ** 2 + 0.5 * off, size**2 + 0.5 * off]) / 1.5


def seen(codes: Codes, values: Losses, violations: Losses | None = None) -> History:
    missed = np.zeros((len(codes), 0)) if violations is None else violations
    limits = tuple(f"limit{i}" for i in range(missed.shape[1]))
    keys = frozenset(row.tobytes() for row in codes)
    return History(codes, values, np.ones(values.shape[1]), limits, missed, keys)


def searched(
    sampler: Reinforce,
    features: SpaceFeatures,
    score: Callable[[Codes], Losses],
    trials: int,
    missed: Callable[[Codes], Losses] | None = None,
) -> Codes:
    sampler.features = features
    codes = np.zeros((0, len(features.sizes)), dtype=np.int64)
    while len(codes) < trials:
        known = seen(codes, score(codes), missed and missed(codes))
        rng = np.random.default_rng([sampler.seed, len(codes)])
        codes = np.vstack([codes, sampler.plan(features, known, sampler.batch, rng)])
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("features", [SMALL, LARGE], ids=["listed", "drawn from"])
def test_reinforce_finds_more_hypervolume_than_random_search(features: SpaceFeatures) -> None:
    ours, random = [], []
    for seed in range(4):
        codes = searched(Reinforce(seed), features, two_sided, 120)
        drawn = features.draw(120, np.random.default_rng(seed))
        ours.append(hypervolume(two_sided(codes), REFERENCE))
        random.append(hypervolume(two_sided(drawn), REFERENCE))
    assert np.mean(ours) > np.mean(random) + 0.02
    assert min(ours) > np.mean(random)


def test_reinforce_reaches_both_ends_of_the_front() -> None:
    losses = two_sided(searched(Reinforce(), LARGE, two_sided, 200)[100:])
    assert losses[:, 0].min() < 0.15
    assert losses[:, 1].min() < 0.15


def test_reinforce_learns_to_keep_limits() -> None:
    def missed(codes: Codes) -> Losses:
        return (codes[:, :4].sum(1, keepdims=True) - 4).astype(np.float64)

    codes = searched(Reinforce(), LARGE, two_sided, 120, missed)
    drawn = LARGE.draw(1000, np.random.default_rng(0))
    assert (missed(drawn) <= 0).mean() < 0.35
    assert (missed(codes[60:]) <= 0).mean() > 0.8


def test_reinforce_does_not_learn_from_inactive_choices() -> None:
    """x1 is inactive if x0 is 0; its code is then 0, which is no evidence for option 0."""

    def canonical(codes: Codes) -> Codes:
        found = codes.copy()
        found[found[:, 0] == 0, 1] = 0
        return found

    features = SpaceFeatures({f"x{i}": range(3) for i in range(9)}, canonical=canonical)
    sampler = Reinforce(features=features)
    codes = features.draw(40, np.random.default_rng(0))
    codes[:, 0] = 0
    policies = sampler._policies(seen(canonical(codes), two_sided(codes[:, :6])))
    assert np.ptp(policies.logits[:, 1]) == 0
    assert np.ptp(policies.logits[:, 2]) > 0


def test_reinforce_proposes_no_network_twice_before_all_are_proposed() -> None:
    features = SpaceFeatures({f"x{i}": range(3) for i in range(4)})
    sampler = Reinforce(batch=7, features=features)
    codes = np.zeros((0, 4), dtype=np.int64)
    for number in range(13):
        rng = np.random.default_rng(number)
        known = seen(codes, two_sided(codes))
        codes = np.vstack([codes, sampler.plan(features, known, 7, rng)])
    assert len(codes) == 81
    assert len(np.unique(codes, axis=0)) == 81


@pytest.mark.slow
def test_reinforce_plans_quickly_after_ten_thousand_trials() -> None:
    codes = LARGE.draw(10_004, np.random.default_rng(0))
    values = two_sided(codes)
    sampler = Reinforce(features=LARGE)
    rng = np.random.default_rng(0)
    sampler.plan(LARGE, seen(codes[:10_000], values[:10_000]), 4, rng)
    after = seen(codes, values)
    start = time.process_time()
    sampler.plan(LARGE, after, 4, rng)
    assert time.process_time() - start < 0.25


@pytest.mark.parametrize("option", [{"learning_rate": 0}, {"entropy": -1}, {"decay": 1.0}])
def test_reinforce_refuses_options_out_of_range(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} "):
        Reinforce(**option)  # type: ignore[arg-type]
