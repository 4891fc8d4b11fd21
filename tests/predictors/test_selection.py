from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.predictors import networks_to_time
from hwnas.predictors.features import features
from hwnas.predictors.gaussian_process import Mixture, Parts
from hwnas.predictors.selection import most_informative
from hwnas.search_spaces import MobileNetConfig, MobileNetSpace, Stage

TINY = MobileNetSpace(
    MobileNetConfig(
        (Stage(8, 1, depth=(1, 2), expand_ratio=(2, 3)),),
        resolution=(8,),
        in_channels=1,
        outputs=10,
        stem_channels=8,
        head_channels=16,
        feature_channels=16,
    )
)


@settings(max_examples=10)
@given(count=st.integers(1, 9), seed=st.integers(0, 50))
def test_the_ends_come_first_and_all_differ(count: int, seed: int) -> None:
    chosen = networks_to_time(TINY, count, random.Random(seed))
    assert TINY.size() == 6
    assert len(chosen) == len(set(chosen)) == min(count, 6)
    assert chosen[:2] == [TINY.smallest(), TINY.largest()][:count]
    assert networks_to_time(TINY, count, random.Random(seed)) == chosen


def test_chosen_networks_tell_more_than_random_ones(space: MobileNetSpace) -> None:
    """The volume of what is known, det(X^T X), which D-optimal designs make large."""

    def information(networks: list) -> float:
        rows = (features([space.workload(n) for n in networks]) - centre) / spread
        rows = np.column_stack([np.ones(len(rows)), rows])
        return float(np.linalg.slogdet(rows.T @ rows + 1e-2 * np.eye(rows.shape[1]))[1])

    rng = random.Random(1)
    pool = [space.sample(rng) for _ in range(40)]
    table = features([space.workload(network) for network in pool])
    centre, spread = table.mean(0), table.std(0)
    chosen = information(networks_to_time(space, 12, random.Random(0)))
    at_random = [information(rng.sample(pool, 12)) for _ in range(10)]
    assert chosen > max(at_random)


def test_a_space_of_one_network_has_one_to_time() -> None:
    config = MobileNetConfig((Stage(8),), (8,), in_channels=1, outputs=10, head_channels=16)
    one = MobileNetSpace(config)
    assert networks_to_time(one, 5, random.Random(0)) == [one.smallest()]


def rows(count: int, seed: int) -> Parts:
    rng = np.random.default_rng(seed)
    return Parts({"line": rng.standard_normal((count, 3))}, {"near": rng.uniform(0, 4, (count, 2))})


VARIANCES = np.array([0.5, 0.5, 0.01])


@settings(max_examples=20)
@given(count=st.integers(0, 12), seed=st.integers(0, 50))
def test_informative_rows_are_new_and_all_different(count: int, seed: int) -> None:
    first = most_informative(rows(10, seed), VARIANCES, 2)
    more = most_informative(rows(10, seed), VARIANCES, count, first)
    assert len({*first, *more}) == len(first) + len(more) == min(2 + count, 10)
    # One after the other or all at once is the same.
    assert [*first, *more] == most_informative(rows(10, seed), VARIANCES, 2 + count)


def test_informative_rows_leave_less_unknown_than_random_ones() -> None:
    pool = rows(120, 0)

    def unknown(chosen: list[int]) -> float:
        theta = np.log(VARIANCES)[None]
        process = Mixture(pool.rows(chosen), np.zeros(len(chosen)), 1.0, theta)
        return float((process.predict(pool, noise=False)[1] ** 2).sum())

    rng = random.Random(0)
    chosen = unknown(most_informative(pool, VARIANCES, 10))
    assert chosen < min(unknown(rng.sample(range(120), 10)) for _ in range(20))
