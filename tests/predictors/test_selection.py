from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.predictors.devices.selection import most_informative
from hwnas.predictors.models.gaussian_process import Mixture, Parts


def rows(count: int, seed: int) -> Parts:
    rng = np.random.default_rng(seed)
    return Parts({"line": rng.standard_normal((count, 3))}, {"near": rng.uniform(0, 4, (count, 2))})


VARIANCES = np.array([0.5, 0.5, 0.01])


@settings(max_examples=20)
@given(count=st.integers(0, 12), seed=st.integers(0, 50))
def test_most_informative_selects_distinct_new_rows(count: int, seed: int) -> None:
    first = most_informative(rows(10, seed), VARIANCES, 2)
    more = most_informative(rows(10, seed), VARIANCES, count, first)
    assert len({*first, *more}) == len(first) + len(more) == min(2 + count, 10)
    # Selection in two steps equals selection in one.
    assert [*first, *more] == most_informative(rows(10, seed), VARIANCES, 2 + count)


def test_most_informative_leaves_less_variance_than_random_rows() -> None:
    pool = rows(120, 0)

    def unknown(chosen: list[int]) -> float:
        theta = np.log(VARIANCES)[None]
        process = Mixture(pool.rows(chosen), np.zeros(len(chosen)), 1.0, theta)
        return float((process.predict(pool, noise=False)[1] ** 2).sum())

    rng = random.Random(0)
    chosen = unknown(most_informative(pool, VARIANCES, 10))
    assert chosen < min(unknown(rng.sample(range(120), 10)) for _ in range(20))
