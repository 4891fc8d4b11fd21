"""Reference implementations: loops over individuals, as in the papers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hwnas.search.evolution.scores import Scores

Losses = NDArray[np.float64]


def dominates(a: Losses, b: Losses) -> bool:
    return bool((a <= b).all() and (a < b).any())


def ranks_by_loops(losses: Losses, violations: Losses) -> list[int]:
    """Return ranks by fronts of the feasible, then the others by violation."""
    ranks = [-1] * len(losses)
    left = [i for i in range(len(losses)) if violations[i] == 0]
    rank = 0
    while left:
        front = [i for i in left if not any(dominates(losses[j], losses[i]) for j in left)]
        for i in front:
            ranks[i] = rank
        left = [i for i in left if i not in front]
        rank += 1
    for violation in sorted(set(violations[violations > 0])):
        for i in np.flatnonzero(violations == violation):
            ranks[i] = rank
        rank += 1
    return ranks


def fill(ranks: list[int], needed: int) -> tuple[list[int], list[int]]:
    """Return the individuals of fronts that fit as a whole, and those of the last front."""
    last = sorted(ranks)[needed - 1]
    inside = [i for i, rank in enumerate(ranks) if rank < last]
    return inside, [i for i, rank in enumerate(ranks) if rank == last]


def scores_of(losses: Losses, violations: Losses | None = None) -> Scores:
    violated = np.zeros(len(losses)) if violations is None else violations
    return Scores(torch.from_numpy(losses.copy()), torch.from_numpy(violated.copy()))


@pytest.fixture
def plain_ranks() -> Callable[[Losses, Losses], list[int]]:
    return ranks_by_loops


@pytest.fixture
def plain_fill() -> Callable[[list[int], int], tuple[list[int], list[int]]]:
    return fill


@pytest.fixture
def as_scores() -> Callable[..., Scores]:
    return scores_of
