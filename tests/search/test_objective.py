from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search.objective import (
    COUNTED,
    Direction,
    Objective,
    check_objectives,
    losses,
    violations,
)
from hwnas.search_spaces import mobilenet

TARGET = "cpu-onnxruntime-fp32-b1-t1"
ACCURACY = Objective("accuracy", "maximize")
LATENCY = Objective("latency_ms", "minimize", TARGET)
TASK: dict[str, Direction] = {"accuracy": "maximize", "distance": "minimize"}


def test_a_label_says_what_it_is_measured_on() -> None:
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
def test_a_violation_is_positive_exactly_where_the_limit_is_missed(
    direction: Direction, limit: float, value: float, expected: float
) -> None:
    objective = Objective("metric", direction, limit=limit)
    assert objective.violation(value) == pytest.approx(expected)


@given(st.floats(-1e6, 1e6))
def test_without_a_limit_every_value_is_allowed(value: float) -> None:
    assert ACCURACY.violation(value) < 0
    assert LATENCY.violation(value) < 0


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_a_better_value_has_a_smaller_loss(a: float, b: float) -> None:
    assert (ACCURACY.loss(a) < ACCURACY.loss(b)) == (a > b)
    assert (LATENCY.loss(a) < LATENCY.loss(b)) == (a < b)


def test_only_objectives_with_a_limit_can_be_violated() -> None:
    limited = Objective("macs", "minimize", limit=100)
    assert violations([ACCURACY, limited], {"accuracy": 0.5, "macs": 130}) == {"macs": 30}


def test_losses_are_a_table_of_rows_and_objectives() -> None:
    rows = [{"accuracy": 0.9, LATENCY.label: 2, "other": 7}, {"accuracy": 0.8, LATENCY.label: 1}]
    np.testing.assert_array_equal(losses([ACCURACY, LATENCY], rows), [[-0.9, 2.0], [-0.8, 1.0]])
    assert losses([ACCURACY, LATENCY], []).shape == (0, 2)


def test_what_is_counted_is_counted_from_the_workload() -> None:
    space = mobilenet((8, 8, 1), 10)
    workload = space.workload(space.smallest())
    counts = {name: count(workload) for name, count in COUNTED.items()}
    assert counts["macs"] == workload.macs
    assert counts["params"] == sum(p.numel() for p in space.build(space.smallest()).parameters())
    assert counts["weight_bytes"] >= 4 * counts["params"]
    assert counts["peak_activation_bytes"] >= 4 * math.prod(space.input_shape(space.smallest()))


def test_good_objectives_pass() -> None:
    check_objectives([ACCURACY, LATENCY, Objective("macs", "minimize")], TASK)
    check_objectives([Objective("distance", "minimize", limit=0.1)], TASK)


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ([], r"no \[\[objective\]\]; give at least one"),
        ([Objective("acuracy", "maximize")], "'acuracy' is unknown; did you mean 'accuracy'"),
        ([Objective("energy", "minimize")], "'energy' is unknown; .*known: accuracy, distance"),
        ([Objective("accuracy", "minimize")], 'more of it is better; write direction = "maximize"'),
        ([Objective("macs", "maximize")], 'less of it is better; write direction = "minimize"'),
        ([Objective("latency_ms", "minimize")], "'latency_ms' needs a target; see `hwnas devices`"),
        ([Objective("accuracy", "maximize", TARGET)], "'accuracy' takes no target"),
        ([ACCURACY, LATENCY, ACCURACY], "objective 'accuracy' is there twice; remove one"),
    ],
)
def test_a_wrong_objective_is_refused_with_what_to_do(
    objectives: list[Objective], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_objectives(objectives, TASK)
    assert "\n" not in str(caught.value)


def test_latency_may_be_asked_of_two_targets() -> None:
    other = Objective("latency_ms", "minimize", "cpu-onnxruntime-fp32-b1-t2")
    check_objectives([ACCURACY, LATENCY, other], TASK)
