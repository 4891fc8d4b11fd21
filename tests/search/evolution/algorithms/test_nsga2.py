from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.search.evolution.algorithms.nsga2 import NSGA2, crowding
from hwnas.search.evolution.scores import Scores

Losses = Any


def crowding_by_loops(losses: Losses, front: list[int]) -> dict[int, float]:
    distance = dict.fromkeys(front, 0.0)
    for values in losses.T:
        order = sorted(front, key=lambda i: (values[i], i))
        width = values[order[-1]] - values[order[0]]
        distance[order[0]] = distance[order[-1]] = np.inf
        for before, i, after in zip(order, order[1:], order[2:], strict=False):
            distance[i] += (values[after] - values[before]) / width if width > 0 else 0.0
    return distance


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    population=st.integers(4, 20),
    objectives=st.integers(2, 4),
    values=st.sampled_from([3, 8, 1000]),
    infeasible=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_nsga2_survivors_equal_those_of_a_plain_loop(
    plain_ranks: Callable[..., list[int]],
    plain_fill: Callable[..., tuple[list[int], list[int]]],
    as_scores: Callable[..., Any],
    seed: int,
    population: int,
    objectives: int,
    values: int,
    infeasible: float,
) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.integers(0, values, (2 * population, objectives)).astype(float)
    violations = rng.integers(1, 3, len(losses)) * (rng.random(len(losses)) < infeasible) * 1.0
    inside, last = plain_fill(plain_ranks(losses, violations), population)
    distance = crowding_by_loops(losses, last)
    least_crowded = sorted(last, key=lambda i: (-distance[i], i))
    expected = sorted(inside + least_crowded[: population - len(inside)])

    scores = as_scores(losses, violations)
    algorithm = NSGA2(scores.take(torch.arange(population)), torch.Generator())
    assert algorithm.survive(scores).tolist() == expected


def test_crowding_equals_hand_worked_values() -> None:
    front = torch.tensor([[0.0, 4.0], [1.0, 2.0], [3.0, 1.0], [4.0, 0.0], [1.0, 9.0]]).double()
    ranks = torch.tensor([0, 0, 0, 0, 1])
    found = crowding(front, ranks).tolist()
    inf = float("inf")
    assert found == [inf, 3 / 4 + 3 / 4, 3 / 4 + 2 / 4, inf, inf]


def test_nsga2_selects_better_individuals_more_often() -> None:
    rng = np.random.default_rng(0)
    losses = torch.from_numpy(rng.random((200, 2)))
    losses[:20] -= 2.0  # dominate all others
    scores = Scores(losses, torch.zeros(200, dtype=torch.float64))
    algorithm = NSGA2(scores, torch.Generator().manual_seed(0))
    chosen = torch.cat([torch.cat(algorithm.mates()) for _ in range(50)])
    share = (chosen < 20).double().mean()
    assert 0.17 < share < 0.21  # 1 - 0.9 ** 2 of all tournaments
