"""Pareto fronts, coverage, hypervolume, spread and knee of losses: smaller is better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from hwnas.errors import ConfigError
from hwnas.search.objectives.front import (
    coverage,
    hypervolume,
    hypervolume_history,
    knee,
    non_dominated,
    pick_spread,
    reference_point,
)

Losses = NDArray[np.float64]


def tables(least: int = 1) -> st.SearchStrategy[Losses]:
    """Return tables of small whole numbers, so that equal values and equal points are common."""
    shape = st.tuples(st.integers(least, 12), st.integers(1, 3))
    return shape.flatmap(lambda s: arrays(np.float64, s, elements=st.integers(0, 6).map(float)))


def dominates(a: Losses, b: Losses) -> bool:
    return bool((a <= b).all() and (a < b).any())


def test_coverage_equals_hand_worked_values() -> None:
    first, second = np.array([[1.0, 3.0], [3.0, 1.0]]), np.array([[1.0, 3.0], [2.0, 4.0], [4.0, 0]])
    assert coverage(first, second) == pytest.approx(2 / 3)  # one equalled, one dominated
    assert coverage(second, first) == pytest.approx(1 / 2)
    with pytest.raises(ConfigError, match="empty set"):
        coverage(first, np.empty((0, 2)))


@given(tables(), st.data())
def test_coverage_of_a_front_is_one_and_grows_with_points(
    losses: Losses, data: st.DataObject
) -> None:
    front = losses[non_dominated(losses)]
    assert coverage(front, losses) == 1
    size = data.draw(st.integers(1, len(front)))
    other = losses + data.draw(st.sampled_from([-1.0, 0.0, 1.0]))
    assert 0 <= coverage(front[:size], other) <= coverage(front, other) <= 1


@given(tables(least=0))
def test_front_is_an_antichain_that_dominates_the_rest(losses: Losses) -> None:
    on_front = non_dominated(losses)
    front = losses[on_front]
    assert on_front.shape == (len(losses),)
    assert not any(dominates(a, b) for a in front for b in front)
    assert all(any(dominates(a, b) for a in front) for b in losses[~on_front])


def test_non_dominated_treats_equal_points_alike() -> None:
    losses = np.array([[1.0, 2.0], [2.0, 2.0], [1.0, 2.0], [2.0, 2.0], [0.0, 3.0]])
    assert non_dominated(losses).tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("points", "reference", "expected"),
    [
        ([[1, 1]], [3, 3], 4),
        ([[1, 2], [2, 1]], [3, 3], 3),  # two rectangles of 2, that share 1
        ([[1, 2], [2, 1], [2, 2]], [3, 3], 3),  # a dominated point adds nothing
        ([[1, 1, 1]], [2, 3, 4], 6),
        ([[0, 0, 1], [1, 1, 0]], [2, 2, 2], 5),  # 4 x 1 and 1 x 2, that share 1
        ([[3, 0]], [3, 3], 0),  # not better than the reference in the first objective
        ([[5, 5]], [3, 3], 0),
    ],
)
def test_hypervolume_equals_hand_worked_values(
    points: list[list[float]], reference: list[float], expected: float
) -> None:
    assert hypervolume(np.array(points, float), np.array(reference, float)) == pytest.approx(
        expected
    )


@given(tables(least=2))
def test_hypervolume_never_falls_with_another_point(losses: Losses) -> None:
    reference = reference_point(losses)
    assert hypervolume(losses[:-1], reference) <= hypervolume(losses, reference) + 1e-9


@given(tables())
def test_reference_point_is_worse_than_every_point(losses: Losses) -> None:
    assert (losses < reference_point(losses)).all()


@given(tables(), st.booleans())
def test_hypervolume_history_equals_recomputed_hypervolumes(losses: Losses, cut: bool) -> None:
    reference = losses.max(0) - 1 if cut else reference_point(losses)
    anew = [hypervolume(losses[: i + 1], reference) for i in range(len(losses))]
    assert hypervolume_history(losses, reference) == pytest.approx(anew)


def test_hypervolume_history_of_no_points_is_empty() -> None:
    assert hypervolume_history(np.empty((0, 2)), np.ones(2)) == []


@given(tables(), st.integers(0, 15))
def test_pick_spread_takes_distinct_points_of_better_fronts_first(
    losses: Losses, count: int
) -> None:
    picked = pick_spread(losses, count)
    assert len(picked) == len(set(picked)) == min(count, len(losses))
    left = np.ones(len(losses), bool)
    for index in picked:
        rows = np.flatnonzero(left)
        assert index in rows[non_dominated(losses[rows])]
        left[index] = False


def test_pick_spread_takes_both_ends_and_the_knee_and_fills_gaps() -> None:
    losses = np.array([[0, 10], [1, 9], [2, 3], [6, 2], [10, 0]], float)
    assert set(pick_spread(losses, 3)) == {0, 4, 2}
    assert set(pick_spread(losses, 4)) == {0, 4, 2, 3}


def test_pick_spread_continues_in_the_next_front() -> None:
    losses = np.array([[5, 5], [0, 0], [1, 2], [2, 1]], float)
    assert pick_spread(losses, 1) == [1]
    assert set(pick_spread(losses, 3)) == {1, 2, 3}
    assert set(pick_spread(losses, 9)) == {0, 1, 2, 3}


def test_knee_does_not_depend_on_the_units() -> None:
    losses = np.array([[0, 10], [2, 3], [10, 0]], float)
    assert knee(losses) == 1
    assert knee(losses * [1000, 0.001]) == 1
    assert knee(np.array([[4.0, 4.0]])) == 0


def test_hypervolume_history_skips_excluded_points() -> None:
    points = np.array([[0.0, 0.0], [1.0, 2.0], [0.5, 0.5], [2.0, 1.0]])
    reference = np.array([3.0, 3.0])
    history = hypervolume_history(points, reference, [False, True, False, True])
    alone = hypervolume_history(points[[1, 3]], reference)
    assert history == [0.0, alone[0], alone[0], alone[1]]
