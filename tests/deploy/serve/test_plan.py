"""The cheapest machines for a load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hwnas as package
from hwnas.deploy import Bundle, TimingSettings
from hwnas.deploy.serve.capacity import ServiceTimes
from hwnas.deploy.serve.plan import PricedMachine, plan_serving
from hwnas.deploy.serve.trial import RequestBody, service_times
from hwnas.errors import ConfigError, InfeasibleError

Command = Callable[..., Any]
TIMES = {
    "fp32@onnxruntime": {
        1: ServiceTimes({1: 5.0, 4: 14.0}, 0.5),
        2: ServiceTimes({1: 3.0, 4: 8.0}, 0.5),
    }
}
SMALL, LARGE = PricedMachine("small", 2, 0.05), PricedMachine("large", 8, 0.18)


def test_plan_keeps_the_limit_with_as_few_machines_as_possible() -> None:
    [plan] = plan_serving(TIMES, [SMALL], 500, 30)
    assert plan.p50_ms < plan.p99_ms <= 30
    assert plan.servers * plan.per_second == pytest.approx(500)
    assert plan.price == pytest.approx(plan.machines * 0.05)
    # One core computes at most 4 / 14 images a millisecond, or two 4 / 8.
    assert plan.machines == 2


@pytest.mark.slow
@settings(max_examples=15)
@given(st.floats(10, 2000), st.floats(15, 200), st.floats(1.1, 3))
def test_price_never_falls_with_the_load_or_a_tighter_limit(
    per_second: float, p99_ms: float, more: float
) -> None:
    price = plan_serving(TIMES, [SMALL, LARGE], per_second, p99_ms)[0].price
    assert plan_serving(TIMES, [SMALL, LARGE], per_second * more, p99_ms)[0].price >= price
    assert plan_serving(TIMES, [SMALL, LARGE], per_second, p99_ms * more)[0].price <= price


@pytest.mark.parametrize("per_second", [100, 900, 5000])
def test_own_code_of_a_server_is_idle_a_third_of_the_time(per_second: float) -> None:
    for plan in plan_serving(TIMES, [SMALL, LARGE], per_second, 200):
        assert plan.per_second * 0.5 / 1e3 <= 0.65


def test_plans_are_sorted_by_price_and_faster_machines_are_fewer() -> None:
    fast = PricedMachine("fast", 2, 0.05, speed=2.0)
    first, second = plan_serving(TIMES, [SMALL, fast], 1000, 30)
    assert first.machine is fast
    assert first.machines < second.machines


def test_plan_serves_the_artifact_that_is_cheapest_under_the_load() -> None:
    """The one that is slower for single images may be faster in batches."""
    times = {**TIMES, "int8@openvino": {1: ServiceTimes({1: 7.0, 4: 9.0}, 0.5)}}
    [heavy], [plain] = (plan_serving(each, [SMALL], 2000, 50) for each in (times, TIMES))
    assert heavy.artifact == "int8@openvino"
    assert heavy.settings.max_batch == 4
    assert heavy.price < plain.price
    [urgent] = plan_serving(times, [SMALL], 50, 6)
    assert urgent.artifact == "fp32@onnxruntime"
    faster = {**TIMES, "int8@openvino": {1: ServiceTimes({1: 4.0}, 0.5)}}
    [equal] = plan_serving(faster, [SMALL], 5, 500)
    assert equal.artifact == "fp32@onnxruntime", "the first one, at an equal price"


def test_limit_below_the_time_of_one_request_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match=r"at 3 ms; a single request .* takes 3\.5 ms"):
        plan_serving(TIMES, [SMALL], 10, 3)


@pytest.mark.parametrize("text", ["small", "small=2", "=2:1", "a=2.5:1", "a=2:1:2:3", "a=2:1.2.3"])
def test_machine_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME=CORES:PRICE"):
        PricedMachine.parse(text)


def test_machine_is_parsed() -> None:
    assert PricedMachine.parse("small=2:0.05") == SMALL
    assert PricedMachine.parse("large=8:0.2:1.5") == PricedMachine("large", 8, 0.2, 1.5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rate", "0"], "the rate is 0; expected a number above 0"),
        (["--p99-ms", "-1"], "the p99 is -1; expected a number above 0"),
        (["--machine", "small=2:0.1"], "the machines are small, small; expected different ones"),
        (["--machine", "tiny=0:0.1"], "machine tiny has 0 cores"),
        (["--check-seconds", "0"], "the check takes 0 s; expected a time above 0"),
        (["--image", "missing.png"], "cannot read the image missing.png"),
    ],
)
def test_wrong_load_is_refused_before_anything_is_measured(
    options: list[str], told: str, packed: Bundle, hwnas: Command
) -> None:
    usual = ["--rate", "5", "--p99-ms", "20", "--machine", "small=2:0.05"]
    hwnas("plan", packed.folder, *usual, *options).refused(told)


@pytest.mark.slow
def test_server_of_the_plan_is_measured_under_its_load(packed: Bundle, hwnas: Command) -> None:
    found = package.plan_serving(packed, 30, 500, ["here=1:1"], check_seconds=4)
    [plan] = found.plans
    assert (plan.machines, plan.servers) == (1, 1)
    assert found.check is not None
    assert found.check.requests == 120
    assert 0 < found.check.p50_ms <= found.check.p99_ms < 500
    answer = hwnas("plan", packed.folder, "--rate", 30, "--p99-ms", 500, "--machine", "here=1:1")
    assert answer.status == 0, answer
    assert "1 x here for 1 an hour: 1 server of fp32@onnxruntime, 1 thread" in answer.out
    next_step = f"next: hwnas serve {packed.folder} --artifact fp32@onnxruntime --threads 1"
    assert next_step in answer.out


@pytest.mark.slow
def test_all_artifacts_of_a_bundle_are_timed(with_two_artifacts: Bundle) -> None:
    body = RequestBody.of(with_two_artifacts, None)
    brief = TimingSettings(warmup=1, rounds=3, round_ms=1.0)
    times = service_times(with_two_artifacts, [1], [4], body, brief)
    assert set(times) == {"fp32@onnxruntime", "fp32@pytorch"}
    assert all(set(each[1].network_ms) == {1, 4} for each in times.values())
    own = {each[1].request_ms for each in times.values()}
    assert len(own) == 1, "the server's own code does not depend on the artifact"
