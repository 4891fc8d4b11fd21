"""Confidence and prediction intervals: invariants, published values and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.interval import (
    difference_interval,
    is_proportion,
    lognormal_interval,
    metric_interval,
    normal_interval,
    paired_difference_interval,
    row_interval,
    wilson_interval,
    wilson_lower,
)

shares = st.floats(0, 1)
counts = st.integers(1, 5000)


def standard_error(share: float, n: int) -> float:
    """Return the standard error of an accuracy by the delta method."""
    return math.sqrt(share * (1 - share) / (n - 1))


@pytest.mark.parametrize(("n", "truth"), [(50, 0.98), (50, 0.9), (200, 0.98), (360, 0.995)])
def test_metric_interval_covers_true_accuracies(n: int, truth: float) -> None:
    rng = np.random.default_rng(0)
    held, wald = 0, 0
    draws = rng.binomial(n, truth, 4000) / n
    for share in draws:
        error = standard_error(share, n)
        held += truth in metric_interval(share, error, n)
        wald += share - 1.96 * error <= truth <= share + 1.96 * error
    assert 0.92 <= held / len(draws) <= 0.99
    assert wald < held, "the normal approximation does worse"


def test_normal_approximation_covers_two_in_three_at_fifty_images() -> None:
    """At an accuracy of 0.98: the reason why these intervals are not normal approximations."""
    draws = np.random.default_rng(1).binomial(50, 0.98, 4000) / 50
    margins = 1.96 * np.sqrt(draws * (1 - draws) / 50)
    assert 0.60 < (np.abs(draws - 0.98) <= margins).mean() < 0.68


@given(shares, counts, st.floats(0.5, 0.999))
def test_wilson_interval_stays_between_zero_and_one(share: float, n: int, level: float) -> None:
    found = wilson_interval(share, n, level)
    assert 0 <= found.low <= share <= found.high <= 1
    assert found.low < found.high


@given(st.integers(2, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_metric_interval_of_counts_is_the_wilson_interval(case: tuple[int, int]) -> None:
    right, n = case
    found = metric_interval(right / n, standard_error(right / n, n), n)
    expected = wilson_interval(right / n, n)
    assert found.ends == pytest.approx(expected.ends, abs=1e-9)


def test_wilson_interval_equals_published_values() -> None:
    """Newcombe 1998, table I: 81 of 263."""
    found = wilson_interval(81 / 263, 263)
    assert found.ends == pytest.approx([0.2553, 0.3662], abs=5e-5)
    assert wilson_interval(1.0, 50).low == pytest.approx(50 / (50 + 1.959964**2), abs=1e-6)


@given(st.floats(0.01, 0.99), counts, st.floats(0, 4))
def test_wilson_lower_is_z_standard_errors_below_the_share(share: float, n: int, z: float) -> None:
    low = float(wilson_lower(share, n, z))
    assert share == pytest.approx(low + z * math.sqrt(max(0.0, low * (1 - low)) / n), abs=1e-6)


@given(st.floats(1e-3, 1e3), st.floats(0, 1e4))
def test_lognormal_interval_is_positive_and_symmetric_as_a_factor(
    median: float, std: float
) -> None:
    found = lognormal_interval(median, std)
    assert 0 < found.low <= median <= found.high
    assert found.high / median == pytest.approx(median / found.low)


def test_metric_interval_of_other_metrics_is_normal() -> None:
    found = metric_interval(0.1, 0.2, 50, proportion=False)
    assert found.ends == pytest.approx([0.1 - 1.95996 * 0.2, 0.1 + 1.95996 * 0.2], abs=1e-4)
    assert normal_interval(3.0, math.nan).ends == [3.0, 3.0]
    assert metric_interval(97.0, 0.5, 50).high > 97, "a percentage is no share"
    assert [is_proportion("fraction"), is_proportion("pixels", "accuracy")] == [True, False]
    assert [is_proportion(None, "accuracy"), is_proportion(None, "error")] == [True, False]


def test_metric_interval_without_spread_is_a_point_except_at_one() -> None:
    assert metric_interval(0.5, 0.0, 100).ends == [0.5, 0.5]
    assert metric_interval(1.0, 0.0).ends == [1.0, 1.0], "nobody said of how many"
    assert metric_interval(1.0, 0.0, 100).low == wilson_interval(1.0, 100).low
    assert metric_interval(0.25, math.nan, 4).ends == wilson_interval(0.25, 4).ends


def test_row_interval_ignores_the_stored_interval() -> None:
    row = {"name": "accuracy", "value": 1.0, "unit": "fraction", "n": 50}
    assert row_interval(row) is None
    found = row_interval({**row, "standard_error": 0.0, "interval": [1.0, 1.0]})
    assert found == wilson_interval(1.0, 50)


@pytest.mark.parametrize(("n", "gain", "loss"), [(50, 0.02, 0.04), (200, 0.01, 0.03)])
def test_paired_difference_interval_covers_the_true_difference(
    n: int, gain: float, loss: float
) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        each = rng.choice([1.0, -1.0, 0.0], n, p=[loss, gain, 1 - loss - gain])
        error = each.std(ddof=1) / n**0.5
        found = paired_difference_interval(each.mean(), error, n)
        assert -1 <= found.low <= each.mean() <= found.high <= 1
        assert found.low < found.high
        held += loss - gain in found
    assert held / 2000 >= 0.93


def test_paired_difference_interval_is_narrow_for_a_small_error() -> None:
    found = paired_difference_interval(0.001, 0.0001, 100)
    assert found.ends == pytest.approx([0.001 - 0.000196, 0.001 + 0.000196], abs=1e-6)


def test_difference_interval_equals_published_values() -> None:
    """Newcombe 1998, table II: 56/70 - 48/80, method 10."""
    first, second = 56 / 70, 48 / 80
    found = difference_interval(
        first, wilson_interval(first, 70), second, wilson_interval(second, 80)
    )
    assert found.ends == pytest.approx([0.0524, 0.3339], abs=5e-5)
