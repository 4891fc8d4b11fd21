from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.search.evolution.algorithms.hype import HypE, expected_losses
from hwnas.search.objectives.front import hypervolume


def volumes_by_loops(losses: Any, samples: Any, dropped: int) -> list[float]:
    """Return the volumes by algorithm 3 of the paper."""
    count = len(losses)
    worth = [
        prod((dropped - j) / (count - j) for j in range(1, i)) / i for i in range(1, dropped + 1)
    ]
    volumes = [0.0] * count
    for sample in samples:
        hit = [i for i in range(count) if all(losses[i] <= sample)]
        if 0 < len(hit) <= dropped:
            for i in hit:
                volumes[i] += worth[len(hit) - 1] / len(samples)
    return volumes


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(2, 4), st.floats(0.01, 1))
def test_expected_losses_equal_those_of_a_plain_loop(
    seed: int, count: int, objectives: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    losses, samples = rng.random((count, objectives)), rng.random((60, objectives))
    dropped = max(1, int(share * count))
    found = expected_losses(torch.from_numpy(losses), torch.from_numpy(samples), dropped)
    assert found.tolist() == pytest.approx(volumes_by_loops(losses, samples, dropped))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), population=st.integers(4, 12))
def test_hype_survivors_equal_those_of_a_plain_loop(
    plain_ranks: Callable[..., list[int]],
    plain_fill: Callable[..., tuple[list[int], list[int]]],
    as_scores: Callable[..., Any],
    seed: int,
    population: int,
) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.random((2 * population, 3))
    inside, last = plain_fill(plain_ranks(losses, np.zeros(len(losses))), population)
    scores = as_scores(losses)
    generator = torch.Generator().manual_seed(seed % 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hwnas.search.evolution.algorithms.hype._SAMPLES", 200)
        algorithm = HypE(scores.take(torch.arange(population)), generator)
        state = generator.get_state()
        found = algorithm.survive(scores).tolist()
    generator.set_state(state)

    expected = sorted(inside + last)
    spare = len(expected) - population
    if spare:
        low, high = losses[last].min(0), losses[last].max(0)
        high = high + 0.1 * np.where(high > low, high - low, 1.0)
        drawn = torch.rand((200, 3), generator=generator).double().numpy()
        volumes = volumes_by_loops(losses[last], low + (high - low) * drawn, spare)
        best = sorted(range(len(last)), key=lambda i: (-round(volumes[i], 12), i))
        expected = sorted(inside + [last[i] for i in best[: len(last) - spare]])
        at_the_edge = sorted(volumes)[spare - 1 : spare + 1]
        if np.isclose(*at_the_edge, rtol=1e-9):  # rounding decides, so either may survive
            assert len(found) == population
            return
    assert found == expected


def test_expected_loss_of_one_drop_equals_the_exclusive_volume() -> None:
    losses = np.array([[0.1, 0.7], [0.4, 0.4], [0.7, 0.1]])
    samples = np.random.default_rng(0).random((100_000, 2))
    found = expected_losses(torch.from_numpy(losses), torch.from_numpy(samples), 1).tolist()
    whole = hypervolume(losses, np.ones(2))
    for i in range(3):
        without = hypervolume(np.delete(losses, i, 0), np.ones(2))
        assert found[i] == pytest.approx(whole - without, abs=0.005)
