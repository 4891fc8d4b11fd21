import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.report import ObjectiveInfo, Score
from hwnas.report.quantities import (
    cost_range,
    count,
    metric_name,
    number,
    score,
    seconds,
    size,
    with_unit,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1 k"),
        (5_483_032, "5.48 M"),
        (217_000_000, "217 M"),
        (999_999, "1 M"),
    ],
)
def test_count_has_three_digits_and_a_prefix(value, text):
    assert count(value) == text


def test_count_of_a_huge_space_is_a_power_of_ten():
    assert count(3 * 10**19) == "3.0e+19"


@given(st.integers(1, 10**14))
def test_count_is_accurate_to_half_a_percent(value):
    digits, _, prefix = count(value).partition(" ")
    power = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[prefix]
    assert float(digits) * power == pytest.approx(value, rel=0.0051)


def test_size_uses_decimal_bytes():
    assert [size(12), size(205_000)] == ["12 B", "205 kB"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4213, "0.421 s"), (59.99, "1 min 00 s"), (245, "4 min 05 s"), (4_320, "1 h 12 min")],
)
def test_seconds_are_shown_as_hours_minutes_and_seconds(value, text):
    assert seconds(value) == text


def test_cost_range_is_the_log_normal_interval():
    assert cost_range(1.0, 0.1) == "0.8486 to 1.178"


def test_score_shows_an_interval_only_if_one_is_known():
    assert score(Score(0.98, 0.005, 360)) == "0.9800 (0.9676 to 0.9877)"
    assert score(Score(0.98, 0.0, 360)) == "0.9800"
    assert score(Score(1.0, 0.0, 360)) == "1.0000 (0.9894 to 1.0000)", "all of so many were right"
    assert score(Score(3.5, 0.1, 360, "pixels")) == "3.5000 (3.3040 to 3.6960)"


def test_values_have_units_and_metric_names_do_not():
    latency = ObjectiveInfo("latency_ms@x", "latency_ms", "minimize", "ms", "predicted")
    assert with_unit(0.41237, latency) == "0.4124 ms"
    assert metric_name("latency_ms", "ms") == "latency"
    assert metric_name("top_5") == "top 5"
    assert metric_name("mean_iou") == "mean IoU"
    assert number(123_456.7) == "123,457"
    assert number(9_999.7) == "10,000"
