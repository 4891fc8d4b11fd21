import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.equal_accuracy import compared, latency_at, levels, speed_ratios
from experiments.record import Row

OURS = np.array([[0.4, 1.0], [0.2, 4.0], [0.3, 9.0]])  # the last one is not on the front
THEIRS = np.array([[0.5, 2.0], [0.3, 8.0]])
WORSE = THEIRS + np.array([1.0, 0.0])


def rows(side: str, table: np.ndarray, standard_error: float = 0.0) -> list[Row]:
    return [
        Row("test_error", f"{side} {i}", 0, error, "fraction", 100,
            {"standard_error": standard_error}, {"side": side, "latency_ms": latency})
        for i, (error, latency) in enumerate(table.tolist())
    ]  # fmt: skip


def test_latency_at_interpolates_on_a_log_scale_and_is_constant_outside() -> None:
    found = latency_at(OURS[:, 0], OURS[:, 1], np.array([0.1, 0.2, 0.3, 0.4, 0.9]))
    assert found == pytest.approx([4.0, 4.0, 2.0, 1.0, 1.0])


def test_levels_lie_where_both_fronts_overlap() -> None:
    assert levels(OURS, THEIRS, (0.0, 0.5, 1.0)) == pytest.approx([0.4, 0.35, 0.3])
    assert len(levels(OURS, WORSE)) == 0


def test_speed_ratio_is_their_latency_divided_by_ours() -> None:
    # At 0.4 they take 4 ms, half-way from 2 to 8 on a logarithmic scale, and we 1 ms.
    assert speed_ratios(OURS, THEIRS, np.array([0.4, 0.3])) == pytest.approx([4.0, 4.0])
    found = {r.metric: r for r in compared([*rows("a", OURS), *rows("b", THEIRS)], "a", "b", 0)}
    assert found["speed_at_equal_accuracy"].value == pytest.approx(4.0)
    assert found["speed_at_50_percent"].details["test_accuracy"] == pytest.approx(0.65)
    assert found["speed_at_50_percent"].spread == pytest.approx({"p05": 4.0, "p95": 4.0})
    assert found["hypervolume_ratio"].value > 1


def test_compared_gives_no_speed_without_a_common_accuracy() -> None:
    apart = [*rows("a", OURS), *rows("b", WORSE)]
    assert [row.metric for row in compared(apart, "a", "b", 0)] == ["hypervolume_ratio"]


def test_compared_gives_wide_intervals_for_noisy_test_errors() -> None:
    noisy = [*rows("a", OURS, 0.02), *rows("b", THEIRS, 0.02)]
    spread = next(r for r in compared(noisy, "a", "b", 0) if r.metric == "speed_at_equal_accuracy")
    assert spread.spread["p05"] < 4.0 < spread.spread["p95"]


@given(st.floats(0.1, 10.0))
def test_speed_ratio_equals_a_constant_factor_between_fronts(by: float) -> None:
    slower = OURS * [1.0, by]
    assert speed_ratios(OURS, slower, levels(OURS, slower)) == pytest.approx([by] * 3)
