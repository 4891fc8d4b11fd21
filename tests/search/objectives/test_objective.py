from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.predictors import Estimate
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.recipe.keys import parts_of
from hwnas.search.objectives.objective import (
    COUNTED,
    Direction,
    Objective,
    Reduction,
    check_objectives,
    kind_of,
    losses,
    stored_label,
    unit_of,
    violations,
    weighed,
)
from hwnas.search_spaces import mobilenet

TARGET = "cpu-onnxruntime-fp32-b1-t1"
ACCURACY = Objective("accuracy", "maximize")
LATENCY = Objective("latency_ms", "minimize", TARGET)
TASK: dict[str, Direction] = {"accuracy": "maximize", "distance": "minimize"}


def test_label_contains_the_target() -> None:
    assert ACCURACY.label == "accuracy"
    assert LATENCY.label == f"latency_ms@{TARGET}"


@pytest.mark.parametrize(
    ("direction", "limit", "value", "expected"),
    [
        ("minimize", 5.0, 7.0, 2.0),
        ("minimize", 5.0, 5.0, 0.0),
        ("minimize", 5.0, 4.0, -1.0),
        ("maximize", 0.9, 0.8, 0.1),
        ("maximize", 0.9, 0.9, 0.0),
        ("maximize", 0.9, 0.95, -0.05),
    ],
)
def test_violation_is_positive_only_if_the_limit_is_missed(
    direction: Direction, limit: float, value: float, expected: float
) -> None:
    objective = Objective("metric", direction, limit=limit)
    assert objective.violation(value) == pytest.approx(expected)


@given(st.floats(-1e6, 1e6))
def test_violation_is_negative_without_a_limit(value: float) -> None:
    assert ACCURACY.violation(value) < 0
    assert LATENCY.violation(value) < 0


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_loss_is_smaller_for_a_better_value(a: float, b: float) -> None:
    assert (ACCURACY.loss(a) < ACCURACY.loss(b)) == (a > b)
    assert (LATENCY.loss(a) < LATENCY.loss(b)) == (a < b)


def test_violations_contain_only_objectives_with_a_limit() -> None:
    limited = Objective("macs", "minimize", limit=100)
    assert violations([ACCURACY, limited], {"accuracy": 0.5, "macs": 130}) == {"macs": 30}


def test_losses_give_a_row_per_candidate_and_a_column_per_objective() -> None:
    rows = [{"accuracy": 0.9, LATENCY.label: 2, "other": 7}, {"accuracy": 0.8, LATENCY.label: 1}]
    np.testing.assert_array_equal(losses([ACCURACY, LATENCY], rows), [[-0.9, 2.0], [-0.8, 1.0]])
    assert losses([ACCURACY, LATENCY], []).shape == (0, 2)


def test_counted_metrics_equal_those_of_the_built_network() -> None:
    space = mobilenet((8, 8, 1), 10)
    workload = space.workload(space.smallest())
    counts = {name: count(workload) for name, count in COUNTED.items()}
    assert counts["macs"] == workload.macs
    assert counts["params"] == sum(p.numel() for p in space.build(space.smallest()).parameters())
    assert counts["weight_bytes"] >= 4 * counts["params"]
    assert counts["peak_activation_bytes"] >= 4 * math.prod(space.input_shape(space.smallest()))


def test_check_objectives_accepts_valid_ones() -> None:
    check_objectives([ACCURACY, LATENCY, Objective("macs", "minimize")], TASK)
    check_objectives([Objective("distance", "minimize", limit=0.1)], TASK)


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ([], r"no \[\[objective\]\]; give at least one"),
        ([Objective("acuracy", "maximize")], "'acuracy' is unknown; did you mean 'accuracy'"),
        (
            [Objective("energy", "minimize")],
            "'energy' is unknown; .*known: accuracy, bit_operations, distance",
        ),
        ([Objective("accuracy", "minimize")], 'more of it is better; write direction = "maximize"'),
        ([Objective("macs", "maximize")], 'less of it is better; write direction = "minimize"'),
        ([Objective("latency_ms", "minimize")], "'latency_ms' needs a target; see `hwnas devices`"),
        ([Objective("accuracy", "maximize", TARGET)], "'accuracy' takes no target"),
        ([ACCURACY, LATENCY, ACCURACY], "objective 'accuracy' appears twice; remove one"),
    ],
)
def test_check_objectives_refuses_wrong_ones_with_advice(
    objectives: list[Objective], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_objectives(objectives, TASK)
    assert "\n" not in str(caught.value)


def test_check_objectives_accepts_latency_on_two_targets() -> None:
    other = Objective("latency_ms", "minimize", "cpu-onnxruntime-fp32-b1-t2")
    check_objectives([ACCURACY, LATENCY, other], TASK)


# One objective over several targets

OTHER = "cpu-openvino-fp32-b1-t1"
costs = st.floats(0.01, 1e3)
relative_errors = st.floats(0, 0.5)


def over_both(reduce: Reduction, limit: float | None = None) -> Objective:
    return Objective("latency_ms", "minimize", None, limit, (TARGET, OTHER), reduce)


def test_objective_over_targets_is_labelled_with_all_of_them() -> None:
    assert over_both("worst").label == f"latency_ms@worst({TARGET}+{OTHER})"
    assert over_both("sum").all_targets == (TARGET, OTHER)
    check_objectives([ACCURACY, over_both("worst"), over_both("sum"), LATENCY], TASK)


@given(a=costs, b=costs, errors=st.tuples(relative_errors, relative_errors))
def test_estimate_reduces_mean_and_upper_end_over_targets(
    a: float, b: float, errors: tuple[float, float]
) -> None:
    first = Estimate("latency_ms", a, a * errors[0], "predicted", TARGET)
    second = Estimate("latency_ms", b, b * errors[1], "predicted", OTHER)
    known = {TARGET: first, OTHER: second}
    uppers = [first.interval90[1], second.interval90[1]]
    worst, total = over_both("worst").estimate(known), over_both("sum").estimate(known)
    assert (worst.mean, total.mean) == (max(a, b), pytest.approx(a + b))
    assert worst.interval90[1] == pytest.approx(max(uppers))
    assert total.interval90[1] == pytest.approx(sum(uppers))
    assert worst.kind == "predicted"
    assert Estimate.from_json(worst.to_json()) == worst
    for limit in (0.99 * max(uppers), 1.01 * max(uppers)):
        kept = all(upper <= limit for upper in uppers)
        assert (over_both("worst", limit).violation(worst.interval90[1]) <= 0) == kept


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": (TARGET, OTHER)}, "has targets, but no reduce; give both, or an"),
        ({"reduce": "worst"}, "has reduce, but no targets"),
        ({"target": TARGET, "targets": (OTHER,), "reduce": "sum"}, "both target and targets"),
        ({"targets": (TARGET,), "reduce": "sum"}, "expected two or more, none twice"),
        ({"targets": (TARGET, OTHER, TARGET), "reduce": "sum"}, "expected two or more, none twice"),
    ],
)
def test_objective_refuses_inconsistent_targets(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective("latency_ms", "minimize", **given)


def test_check_objectives_refuses_targets_for_accuracy() -> None:
    wrong = Objective("accuracy", "maximize", targets=(TARGET, OTHER), reduce="worst")
    with pytest.raises(ConfigError, match="'accuracy' takes no target"):
        check_objectives([wrong], TASK)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-3, 1e3)), min_size=2), st.floats(0.1, 10))
def test_weighed_shifts_all_networks_equally_for_a_slower_device(
    networks: list[tuple[float, float]], times: float
) -> None:
    objectives = (ACCURACY, LATENCY)

    def table(factor: float) -> Any:
        rows = [{"accuracy": a, LATENCY.label: factor * ms} for a, ms in networks]
        return weighed(objectives, rows)

    moved = table(times) - table(1.0)
    assert np.allclose(moved, [0.0, math.log(times)])


def test_weighed_keeps_the_order_also_with_a_cost_of_zero() -> None:
    rows = [{"params": float(n)} for n in (0, 1, 1000)]
    found = weighed([Objective("params", "minimize")], rows)[:, 0]
    assert np.isfinite(found).all()
    assert list(found) == sorted(found)


@pytest.mark.parametrize("metric", DEVICE_METRICS)
def test_every_metric_on_devices_is_an_objective_with_a_target(metric: str) -> None:
    one = Objective(metric, "minimize", "cpu-onnxruntime-fp32-b1-t1", limit=5.0)
    both = Objective(metric, "minimize", targets=("a", "b"), reduce="sum")
    check_objectives([one, both], {})
    assert one.is_cost
    assert both.costs == (f"{metric}@a", f"{metric}@b")
    assert kind_of(metric) == "predicted"
    assert metric.endswith(unit_of(metric).lower())
    with pytest.raises(ConfigError, match="needs a target"):
        check_objectives([Objective(metric, "minimize")], {})
    with pytest.raises(ConfigError, match='write direction = "minimize"'):
        check_objectives([replace(one, direction="maximize")], {})


def test_names_of_stages_and_identities_leave_out_latency_only() -> None:
    """Runs of 0.1 have ``calibrate@TARGET``, since latency was the only metric on devices."""
    assert stored_label("latency_ms@cpu") == "cpu"
    assert stored_label("energy_mj@cpu") == "energy_mj@cpu"
    assert parts_of(f"calibrate@{stored_label('energy_mj@cpu')}") == ("calibrate", "cpu")
    assert parts_of("search") == ("search", None)
