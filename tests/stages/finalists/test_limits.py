"""Checks of the limits against measured and evaluated values of finalists."""

from __future__ import annotations

from typing import Any

import pytest

from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.search import Objective
from hwnas.stages.finalists.limits import (
    LimitCheck,
    best_kept,
    limit_checks,
    limit_messages,
    none_keeps,
    overall,
    recheck,
    shortfall,
)

HERE, THERE = "cpu-onnxruntime-fp32-b1-t1", "cpu-openvino-fp32-b1-t1"


def measured(ms: float, target: str = HERE) -> Measurement:
    """Return a measurement with a spread of a tenth to either side."""
    spread = Quantiles(0.9 * ms, ms, 1.1 * ms)
    return Measurement(
        target, "cpu", spread, spread, 50, False, 1.0, "a processor", {}, {}, "2026-01-01"
    )


def score(value: float, split: str, n: int = 400) -> dict[str, Any]:
    error = (value * (1 - value) / n) ** 0.5
    return {
        "name": "accuracy",
        "value": value,
        "unit": "fraction",
        "kind": "evaluated",
        "split": split,
        "n": n,
        "standard_error": error,
    }


def at_most(limit: float | None) -> Objective:
    return Objective("latency_ms", "minimize", HERE, limit)


def test_limit_on_validation_is_not_checked_on_test_images() -> None:
    rows = [score(0.93, "validation"), score(0.5, "test")]
    limit = Objective("accuracy", "maximize", limit=0.9, limit_on="validation")
    [check] = limit_checks([limit], rows, [])
    assert (check.split, check.state) == ("validation", "kept")


@pytest.mark.parametrize(
    ("ms", "state"), [(1.0, "kept"), (0.5, "kept"), (1.05, "within noise"), (1.2, "broken")]
)
def test_limit_checks_compare_the_measured_latency(ms: float, state: str) -> None:
    [check] = limit_checks([at_most(1.0)], [], [measured(ms)])
    assert (check.state, check.value, check.kind) == (state, ms, "measured")
    assert overall([check]) == state
    assert (check.excess > 0) == (state != "kept") == bool(limit_messages([check]))


@pytest.mark.parametrize(
    ("value", "state"), [(0.9, "kept"), (0.89, "within noise"), (0.8, "broken")]
)
def test_limit_checks_decide_on_validation_scores(value: float, state: str) -> None:
    wanted = Objective("accuracy", "maximize", limit=0.9)
    checks = limit_checks([wanted], [score(0.5, "test"), score(value, "validation")], [])
    assert [check.split for check in checks] == ["validation", "test"]
    assert overall(checks) == state, "test images decide nothing"
    assert checks[1].state == "broken"
    assert "0.5 (evaluated on test images)" in limit_messages(checks)[-1], "but they are shown"


def test_limit_checks_are_exact_for_counts_and_skip_missing_values() -> None:
    rows = [{"name": "macs", "value": 1001, "kind": "counted"}]
    wanted = [Objective("macs", "minimize", limit=1000), at_most(None), at_most(2.0)]
    [check] = limit_checks(wanted, rows, [])
    assert (check.state, check.low, check.high) == ("broken", 1001, 1001)
    assert overall([]) == "kept"


def test_limit_checks_reduce_several_targets_like_the_search() -> None:
    both = [measured(1.0), measured(2.0, THERE)]
    worst = Objective("latency_ms", "minimize", None, 2.0, (HERE, THERE), "worst")
    total = Objective("latency_ms", "minimize", None, 2.0, (HERE, THERE), "sum")
    slowest, together = limit_checks([worst, total], [], both)
    assert (slowest.value, slowest.state) == (2.0, "kept")
    assert (together.value, together.state) == (3.0, "broken")
    assert not limit_checks([worst], [], both[:1]), "one of the targets was not measured"


def test_recheck_applies_the_current_limits() -> None:
    found = limit_checks([at_most(1.0)], [], [measured(1.5)])
    assert overall(recheck(found, [at_most(2.0)])) == "kept"
    assert recheck(found, [at_most(1.0)]) == found
    assert recheck(found, [at_most(None)]) == ()
    assert LimitCheck(**found[0].to_json()) == found[0]


def test_best_kept_prefers_kept_limits_to_misses_within_noise() -> None:
    checks = {
        str(ms): limit_checks([at_most(1.0)], [], [measured(ms)]) for ms in (1.2, 1.05, 0.9, 1.02)
    }
    assert best_kept(checks) == ["0.9"]
    assert best_kept({n: c for n, c in checks.items() if n != "0.9"}) == ["1.05", "1.02"]
    assert best_kept({"1.2": checks["1.2"]}) == []
    assert best_kept({"any": ()}) == ["any"], "without limits all may be chosen"
    ordered = sorted(checks, key=lambda name: shortfall(checks[name]))
    assert ordered == ["0.9", "1.02", "1.05", "1.2"]


def test_none_keeps_names_the_closest_finalist() -> None:
    checks = {
        str(ms): limit_checks([at_most(0.1)], [], [measured(ms)]) for ms in (0.62, 0.415, 0.5)
    }
    text = str(none_keeps(checks))
    assert "none of 3 finalists meets the limits, and the closest is 0.415" in text
    assert f"latency_ms@{HERE} is 0.415 (measured); the limit is 0.1" in text
    assert "--pick 0.415" in text
    assert "--pick" not in str(none_keeps(checks, "cascade"))
