"""The kernel benchmark: which backends are timed, reasons for those that are not, and its rows."""

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hwnas.errors import ArtifactError, ConfigError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.codegen.chains import CHAINS
from hwnas.kernels.operator import Inputs, Operator
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.suite.backends import Backend, ReferenceBackend, TritonBackend
from hwnas.kernels.suite.bench import Timing, bench_case, run_bench
from hwnas.kernels.suite.cases import Case
from hwnas.kernels.suite.timer import CallTimer, ProcessorTimer, Times

CPU = torch.device("cpu")
CASE = Case("pointwise", OPERATORS["pointwise"], torch.float32, OPERATORS["pointwise"].checked[0])


class Changed(ReferenceBackend):
    """Reference backend with another name, whose results a function changes."""

    def __init__(self, name: str, change: Callable[[Any], Any] = lambda y: y) -> None:
        super().__init__(name)
        object.__setattr__(self, "change", change)

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        return lambda: self.change(operator.reference(**inputs))  # type: ignore[attr-defined]


class RefusingBackend(ReferenceBackend):
    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        raise ArtifactError("not this one")


class ListedTimer:
    """Timer that gives each backend one time of a list, and records the order of the timings."""

    description = "listed"

    def __init__(self, *times_us: float) -> None:
        self.left, self.asked = list(times_us), []

    def prepare(self, run: Callable[[], object]) -> CallTimer:
        run()
        own = self.left.pop(0)

        def timed(runs: int) -> Sequence[float]:
            self.asked.append(own)
            return [own] * runs

        return timed


def timings(timer: Any, *backends: Backend) -> list[Timing]:
    return bench_case(CASE, backends, CPU, timer)


def test_bench_ratio_compares_with_the_fastest_other_backend() -> None:
    timer = ListedTimer(40.0, 10.0, 20.0)
    rows = timings(timer, *map(Changed, ("slow", "fast", "middle")))
    assert [row.ratio for row in rows] == [0.25, 2.0, 0.5]
    first = rows[0].to_json()
    assert first["op"] == "pointwise"
    assert first["dtype"] == "float32"
    assert first["shape"] == [1, 49, 17, 23, 0, 0]
    assert (first["backend"], first["timing"], first["reason"]) == ("slow", "listed", "")
    assert [first[name] for name in ("median_ms", "p20_ms", "p80_ms")] == [0.04] * 3


def test_bench_times_backends_in_turn() -> None:
    timer = ListedTimer(1.0, 2.0)
    rows = timings(timer, Changed("one"), Changed("other"))
    assert len(timer.asked) > 4
    assert timer.asked == [1.0, 2.0] * (len(timer.asked) // 2)
    assert {row.times and row.times.n for row in rows} == {3 * len(timer.asked)}


def test_bench_gives_a_single_backend_no_ratio() -> None:
    [row] = timings(ListedTimer(5.0), ReferenceBackend())
    assert row.times == Times.of([5.0] * 30)
    assert row.ratio is None


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (Changed("other", lambda y: y + 1), "times the tolerance of its type"),
        (Changed("other", lambda y: y * torch.nan), "inf times the tolerance of its type"),
        (Changed("other", lambda y: y[:0]), "an output has the wrong shape"),
        (Changed("other", lambda y: y @ torch.ones(99)), "RuntimeError: "),
        (RefusingBackend("other"), "not this one"),
    ],
)
def test_bench_gives_wrong_or_failing_backends_a_reason_and_no_time(
    backend: Backend, reason: str
) -> None:
    right, other = timings(ListedTimer(1.0), ReferenceBackend(), backend)
    assert right.times
    assert right.ratio is None
    assert other.times is None
    assert reason in other.reason
    assert other.to_json()["median_ms"] is None


def test_bench_does_not_time_triton_in_the_interpreter() -> None:
    [row] = timings(ListedTimer(), TritonBackend())
    assert row.times is None
    assert "there is no GPU" in row.reason


def test_bench_gives_a_reason_if_inputs_do_not_fit_in_memory() -> None:
    large = Case(CASE.name, CASE.operator, CASE.dtype, {**CASE.sizes, "pixels": 2**50})
    [row] = bench_case(large, [ReferenceBackend()], CPU, ListedTimer())
    assert row.times is None
    assert row.reason.startswith("no inputs: RuntimeError")


def test_bench_marks_cases_that_it_did_not_reach_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    a_second_each = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr("hwnas.kernels.suite.bench.time", a_second_each)
    [[first], *rest] = run_bench(
        [CASE] * 3, [ReferenceBackend()], CPU, ListedTimer(1.0), seconds=1.5
    )
    assert first.times
    assert ["not reached within 1.5 s" in row.reason for [row] in rest] == [True, True]


def test_processor_timer_measures_more_time_for_more_work() -> None:
    less, more = (
        Times.of(ProcessorTimer().prepare(torch.ones(2**power).neg_)(10)) for power in (10, 22)
    )
    assert 0 < less.p20_us < more.p20_us
    assert "processor, " in ProcessorTimer().description


@pytest.mark.parametrize("name", [*OPERATORS, *CHAINS])
def test_measured_cases_have_sizes_that_the_operator_supports(name: str) -> None:
    for case in Case.measured({**OPERATORS, **CHAINS}, [name], batches=(1, 8)):
        operator = case.operator
        assert list(case.sizes) == list(operator.checked[0])
        for gpu in ACCELERATORS.values():
            assert not operator.problem(case.sizes, case.dtype, gpu).broken(case.config)
    single, several = (Case.measured({name: operator}, batches=(n,)) for n in (1, 8))
    for one, eight in zip(single, several, strict=True):
        work = [operator.work(each.sizes, each.dtype).macs for each in (one, eight)]
        assert work[1] == 8 * work[0]


def test_measured_cases_have_the_first_or_the_requested_dtype() -> None:
    both = {name: OPERATORS[name] for name in ("pointwise", "int8_pointwise")}
    assert {case.dtype for case in Case.measured(both)} == {torch.float16, torch.int8}
    assert {case.name for case in Case.measured(both, dtype="bfloat16")} == {"pointwise"}
    with pytest.raises(ConfigError, match="no operator takes 'float61'; did you mean 'float16'"):
        Case.measured(both, dtype="float61")
    with pytest.raises(ConfigError, match="int8_pointwise does not take 'float16'; it takes int8"):
        Case.measured(both, ["int8_pointwise"], "float16")
