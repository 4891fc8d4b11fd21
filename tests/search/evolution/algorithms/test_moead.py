from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.search.evolution.algorithms.moead import MOEAD
from hwnas.search.evolution.directions import spread_directions


def value_by_loops(point: Any, direction: Any) -> float:
    along = sum(p * d for p, d in zip(point, direction, strict=True))
    aside = sum((p - along * d) ** 2 for p, d in zip(point, direction, strict=True)) ** 0.5
    return float(along + 5 * aside)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    population=st.integers(4, 20),  # all are neighbours of all
    objectives=st.integers(2, 4),
    infeasible=st.sampled_from([0.0, 0.4]),
)
def test_moead_survivors_equal_those_of_a_plain_loop(
    as_scores: Callable[..., Any], seed: int, population: int, objectives: int, infeasible: float
) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.random((2 * population, objectives))
    violations = rng.integers(1, 3, len(losses)) * (rng.random(len(losses)) < infeasible) * 1.0
    directions = spread_directions(objectives, population)
    gaps = np.linalg.norm(directions[:, None] - directions, axis=2)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    ideal = losses.min(0)
    scaled = (losses - ideal) / (losses[:population].max(0) - ideal)
    expected = []
    for i in range(population):
        best = i
        for j in sorted(range(population), key=lambda j: gaps[i, j]):
            child = population + j
            mine = violations[best], value_by_loops(scaled[best], directions[i])
            if (violations[child], value_by_loops(scaled[child], directions[i])) < mine:
                best = child
        expected.append(best)

    scores = as_scores(losses, violations)
    algorithm = MOEAD(scores.take(torch.arange(population)), torch.Generator())
    assert algorithm.survive(scores).tolist() == expected


def test_moead_children_replace_neighbours_only(as_scores: Callable[..., Any]) -> None:
    losses = 1 + np.random.default_rng(0).random((200, 2))
    algorithm = MOEAD(as_scores(losses), torch.Generator())
    children = np.full((200, 2), 5.0)
    children[70] = 0.5  # dominates everything
    found = algorithm.survive(as_scores(np.vstack([losses, children]))).numpy()
    directions = spread_directions(2, 200)
    gaps = np.linalg.norm(directions - directions[70], axis=1)
    helped = np.flatnonzero(found == 270)
    assert len(helped) == pytest.approx(20, abs=1)  # at the edge two are equally near
    assert gaps[helped].max() <= np.sort(gaps)[20]
    others = np.setdiff1d(np.arange(200), helped)
    assert (found[others] == others).all()


def test_moead_mates_are_mostly_neighbours(as_scores: Callable[..., Any]) -> None:
    losses = np.random.default_rng(0).random((500, 3))
    algorithm = MOEAD(as_scores(losses), torch.Generator().manual_seed(0))
    directions = spread_directions(3, 500)
    first, second = (places.numpy() for places in algorithm.mates())
    assert first.shape == second.shape == (500,)
    own = np.arange(500)
    close = np.linalg.norm(directions[first] - directions[own], axis=1) < 0.3
    assert 0.85 < close.mean() < 1


@pytest.mark.parametrize(("objectives", "count"), [(2, 4), (3, 100), (3, 5), (4, 37), (5, 4)])
def test_spread_directions_gives_the_requested_number(objectives: int, count: int) -> None:
    directions = spread_directions(objectives, count)
    assert directions.shape == (count, objectives)
    assert (directions >= 0).all()
    assert np.allclose(directions.sum(1), 1)
    assert len(np.unique(directions.round(9), axis=0)) == count
