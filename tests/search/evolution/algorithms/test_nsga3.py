from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.search.evolution.algorithms.nsga3 import NSGA3, emptiest_niches, worst_of_front
from hwnas.search.evolution.directions import lattice_within


def niching_by_loops(
    niches: list[int],
    distances: list[float],
    taken: list[int],
    wanted: int,
    noise: list[float],
    niche_noise: list[float],
) -> list[int]:
    """Choose individuals one by one, from the niche with the fewest members."""
    taken, left, chosen = list(taken), set(range(len(niches))), []
    while len(chosen) < wanted:
        open_niches = {niches[i] for i in left}
        niche = min(open_niches, key=lambda n: (taken[n], niche_noise[n]))
        members = [i for i in left if niches[i] == niche]
        if taken[niche] == 0:
            best = min(members, key=lambda i: (distances[i], i))
        else:
            best = min(members, key=lambda i: (noise[i], i))
        chosen.append(best)
        left.remove(best)
        taken[niche] += 1
    return chosen


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 12), st.floats(0, 1))
def test_emptiest_niches_equal_those_of_a_plain_loop(
    seed: int, count: int, niches: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    own = rng.integers(0, niches, count)
    taken = rng.integers(0, 4, niches)
    distances, noise, niche_noise = rng.random(count), rng.random(count), rng.random(niches)
    wanted = int(share * count)
    given_arrays = [torch.from_numpy(each) for each in (own, distances, taken)]
    found = emptiest_niches(
        *given_arrays, wanted, torch.from_numpy(noise), torch.from_numpy(niche_noise)
    )
    lists = [each.tolist() for each in (own, distances, taken)]
    expected = niching_by_loops(*lists, wanted, noise.tolist(), niche_noise.tolist())
    assert found.tolist() == expected


def nearest_by_loops(point: Any, directions: Any) -> tuple[int, float]:
    away = [np.linalg.norm(point - (point @ d) * d) for d in directions]
    return int(np.argmin(away)), float(min(away))


def extremes_by_loops(points: Any, ideal: Any) -> Any:
    found = []
    for axis in range(points.shape[1]):
        weights = np.full(points.shape[1], 1e-6)
        weights[axis] = 1.0
        found.append(min(points, key=lambda p: max((p - ideal) / weights)))
    return np.array(found)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), population=st.integers(6, 24), far=st.booleans())
def test_nsga3_survivors_equal_those_of_a_plain_loop(
    plain_ranks: Callable[..., list[int]],
    plain_fill: Callable[..., tuple[list[int], list[int]]],
    as_scores: Callable[..., Any],
    seed: int,
    population: int,
    far: bool,
) -> None:
    """Use points around a sphere: they are on few fronts, and a plane through the ends exists."""
    rng = np.random.default_rng(seed)
    losses = np.abs(rng.normal(size=(2 * population, 3)))
    losses /= np.linalg.norm(losses, axis=1, keepdims=True)
    losses *= rng.uniform(1, 1.4 if far else 1.05, (len(losses), 1)) * [1, 10, 0.1]
    ranks = plain_ranks(losses, np.zeros(len(losses)))
    inside, last = plain_fill(ranks, population)

    scores = as_scores(losses)
    generator = torch.Generator().manual_seed(seed % 1000)
    algorithm = NSGA3(scores.take(torch.arange(population)), generator)
    state = generator.get_state()
    found = algorithm.survive(scores).tolist()
    generator.set_state(state)

    # The ideal and the ends of the first population are remembered.
    first = plain_ranks(losses[:population], np.zeros(population))
    old = losses[:population][np.array(first) == 0]
    ends = extremes_by_loops(old, old.min(0))
    front = losses[np.array(ranks) == 0]
    ideal = np.minimum(old.min(0), front.min(0))
    ends = extremes_by_loops(np.vstack([ends, front]), ideal)
    worst = worst_of_front(*map(torch.from_numpy, (ends, front, ideal))).numpy()
    scaled = (losses - ideal) / (worst - ideal)
    directions = lattice_within(3, population)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    near = [nearest_by_loops(point, directions) for point in scaled]
    wanted = population - len(inside)
    expected = sorted(inside + last)
    if wanted < len(last):
        noise = torch.rand(len(last), generator=generator).tolist()
        niche_noise = torch.rand(len(directions), generator=generator).tolist()
        taken = [sum(near[i][0] == d for i in inside) for d in range(len(directions))]
        own, away = [near[i][0] for i in last], [near[i][1] for i in last]
        chosen = niching_by_loops(own, away, taken, wanted, noise, niche_noise)
        expected = sorted(inside + [last[i] for i in chosen])
    assert found == expected


def test_worst_of_front_is_where_the_plane_meets_the_axes() -> None:
    ends = torch.tensor([[2.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 8.0]]).double()
    inside = torch.tensor([[0.5, 0.5, 0.5]]).double()
    front = torch.cat([ends, inside])
    assert worst_of_front(ends, front, torch.zeros(3).double()).tolist() == pytest.approx([2, 4, 8])


def test_worst_of_front_takes_the_maximum_if_the_ends_span_no_plane() -> None:
    ends = torch.tensor([[1.0, 1.0], [1.0, 1.0]]).double()
    front = torch.tensor([[1.0, 1.0], [0.0, 3.0]]).double()
    found = worst_of_front(ends, front, torch.zeros(2).double()).tolist()
    assert found == [1.0, 3.0]
    flat = torch.tensor([[5.0, 5.0]]).double()
    assert not math.isnan(worst_of_front(flat[:0], flat, flat[0]).sum())


def test_lattice_within_keeps_the_limit() -> None:
    for objectives in (2, 3, 4, 6):
        grid = lattice_within(objectives, 200)
        assert objectives <= len(grid) <= 200
        assert np.allclose(grid.sum(1), 1)
        assert (grid >= 0).all()
        assert len(np.unique(grid.round(9), axis=0)) == len(grid)
    assert len(lattice_within(3, 91)) == 91  # 12 partitions, as in the paper
