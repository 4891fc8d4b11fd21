from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search.objectives.front import hypervolume
from hwnas.search.samplers.guided.acquisition import BoxDecomposition, expected_improvement


def cloud(seed: int, count: int, objectives: int) -> np.ndarray:
    """Return random points, some of which share coordinates."""
    rng = np.random.default_rng(seed)
    return np.round(rng.random((count, objectives)), 1 if seed % 2 else 3)


@given(st.integers(0, 10**6), st.integers(0, 25), st.integers(1, 5))
def test_box_decomposition_fills_the_dominated_region(
    seed: int, count: int, objectives: int
) -> None:
    points, reference = cloud(seed, count, objectives), np.full(objectives, 0.9)
    dominated = BoxDecomposition.by(points, reference)
    assert dominated.volume == pytest.approx(hypervolume(points, reference), abs=1e-12)
    overlaps = [
        np.clip(np.minimum(a, b) - np.maximum(c, d), 0, None).prod()
        for i, (a, c) in enumerate(zip(dominated.upper, dominated.lower, strict=True))
        for b, d in zip(dominated.upper[:i], dominated.lower[:i], strict=True)
    ]
    assert sum(overlaps) < 1e-12


@given(st.integers(0, 10**6), st.integers(0, 15), st.integers(1, 5))
def test_improvement_of_a_certain_point_equals_its_hypervolume_gain(
    seed: int, count: int, objectives: int
) -> None:
    points, reference = cloud(seed, count, objectives), np.ones(objectives)
    candidates = np.random.default_rng(seed + 1).random((4, objectives)) * 1.2
    gain = BoxDecomposition.by(points, reference).improvement(candidates, np.zeros_like(candidates))
    before = hypervolume(points, reference)
    after = [hypervolume(np.vstack([points, c]), reference) for c in candidates]
    assert gain == pytest.approx(np.array(after) - before, abs=1e-9)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_expected_improvement_equals_the_mean_of_many_draws(objectives: int) -> None:
    rng = np.random.default_rng(objectives)
    points, reference = 0.2 + rng.random((12, objectives)), np.full(objectives, 1.3)
    mean, deviation = np.full((1, objectives), 0.2), np.linspace(0.05, 0.2, objectives)[None]
    draws = rng.normal(mean, deviation, (4000, objectives))
    before = hypervolume(points, reference)
    gains = [hypervolume(np.vstack([points, d]), reference) - before for d in draws]
    found = BoxDecomposition.by(points, reference).improvement(mean, deviation)
    assert found[0] == pytest.approx(np.mean(gains), abs=4 * np.std(gains) / 4000**0.5)


def test_box_decomposition_limits_its_boxes_for_large_fronts() -> None:
    rng = np.random.default_rng(0)
    for objectives in (2, 3, 4, 5):
        points = rng.random((2000, objectives))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        dominated = BoxDecomposition.by(-points, np.zeros(objectives))
        assert len(dominated.lower) < 5000
        assert 0 < dominated.volume <= hypervolume(-points, np.zeros(objectives)) + 1e-9


def test_expected_improvement_equals_known_values_for_one_objective() -> None:
    # E[max(-Y, 0)] of a standard normal is its density at 0.
    level, mean, deviation = np.array([0.0]), np.array([0.0]), np.array([1.0])
    assert expected_improvement(level, mean, deviation) == pytest.approx([0.3989], abs=1e-4)
    assert expected_improvement(np.array([-np.inf]), mean, deviation) == [0.0]
    assert expected_improvement(level, np.array([-2.0]), np.array([0.0])) == pytest.approx([2.0])
