"""Benchmark of every operator on every backend, timed in turn at sizes of searched networks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hwnas.kernels.launch import interpreting
from hwnas.kernels.operator import Inputs
from hwnas.kernels.suite.backends import Backend, TritonBackend
from hwnas.kernels.suite.cases import Case
from hwnas.kernels.suite.correctness import compared
from hwnas.kernels.suite.timer import Timer, Times, done
from hwnas.kernels.suite.tolerance import exact_outputs
from hwnas.kernels.tuning.race import fair, raced, why

__all__ = ["Timing", "bench_case", "run_bench"]

_ANOTHER = 16.0  # times the tolerance; beyond it a backend computes something else


@dataclass(frozen=True)
class Timing:
    """Time that a backend takes for a case.

    Attributes:
        case: Operator, type and sizes.
        backend: Name of the backend.
        timing: Timing method of all backends of the case, in words.
        times: Quantiles of the times; None if the backend was not timed.
        reason: Reason why it was not timed; empty if it was.
        fastest_other_us: Shortest median of the other backends; None if none of them was timed.
    """

    case: Case
    backend: str
    timing: str
    times: Times | None = None
    reason: str = ""
    fastest_other_us: float | None = None

    @property
    def ratio(self) -> float | None:
        """Speed relative to the fastest other backend; None if either was not timed."""
        if self.times is None or self.fastest_other_us is None:
            return None
        return self.fastest_other_us / self.times.p50_us

    @property
    def quantiles_ms(self) -> tuple[float, float, float] | None:
        """Median, 20th percentile and 80th percentile in milliseconds; None if not timed."""
        if self.times is None:
            return None
        return self.times.p50_us / 1000, self.times.p20_us / 1000, self.times.p80_us / 1000

    def to_json(self) -> dict[str, Any]:
        """Return one result row, with times in milliseconds."""
        median, p20, p80 = self.quantiles_ms or (None, None, None)
        return {
            **self.case.to_json(),
            "backend": self.backend,
            "median_ms": median,
            "p20_ms": p20,
            "p80_ms": p80,
            "n": 0 if self.times is None else self.times.n,
            "ratio": self.ratio,
            "timing": self.timing,
            "reason": self.reason,
        }


def run_bench(
    cases: Sequence[Case],
    backends: Sequence[Backend],
    device: torch.device,
    timer: Timer,
    seconds: float,
    seed: int = 0,
) -> Iterator[list[Timing]]:
    """Yield the timings of all backends, case by case.

    Args:
        cases: Cases to time.
        backends: Backends to time.
        device: Device of the inputs.
        timer: Timer for that device.
        seconds: Time after which no case is started; the rows of the remaining cases say so.
        seed: Seed of the inputs.

    Raises:
        DeviceError: The GPU is unusable in this process from now on.
    """
    end = time.monotonic() + seconds
    for case in cases:
        if time.monotonic() < end:
            yield done(partial(bench_case, case, backends, device, timer, seed))
        else:
            reason = f"not reached within {seconds:g} s"
            yield [Timing(case, each.name, timer.description, reason=reason) for each in backends]


def bench_case(
    case: Case, backends: Sequence[Backend], device: torch.device, timer: Timer, seed: int = 0
) -> list[Timing]:
    """Time a case on all backends in turn; backends with grossly wrong results are not timed."""
    try:
        inputs = case.example(device, seed)
    except RuntimeError as error:  # such as a lack of memory for them
        reasons = {backend.name: f"no inputs: {why(error)}" for backend in backends}
        return _timings(case, backends, timer, {}, reasons)
    with fair():
        runs, absent = _ready(case, backends, device, inputs)
        times, more = raced(runs, timer)
    return _timings(case, backends, timer, times, absent | more)


def _ready(
    case: Case, backends: Sequence[Backend], device: torch.device, inputs: Inputs
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the calls to time, by backend, and the reasons why other backends are not timed."""
    truth = exact_outputs(case.operator.reference, inputs)
    runs, absent = {}, {}
    for backend in backends:
        if reason := _untimed(backend, device):
            absent[backend.name] = reason
            continue
        try:
            run = backend.prepare(case.operator, inputs)
        except Exception as error:  # a backend may be the user's own
            absent[backend.name] = why(error)
            continue
        verdict = compared(case, run, truth)
        if verdict.share is None or not verdict.share <= _ANOTHER:
            absent[backend.name] = verdict.reason
        else:
            runs[backend.name] = run
    return runs, absent


def _untimed(backend: Backend, device: torch.device) -> str | None:
    """Return why a backend is not timed on a device, or None if it can be timed."""
    if isinstance(backend, TritonBackend) and (device.type != "cuda" or interpreting()):
        cause = "there is no GPU" if device.type != "cuda" else "TRITON_INTERPRET is set"
        return f"{cause}, and times of Triton's interpreter are not comparable"
    return backend.unavailable(device)


def _timings(
    case: Case,
    backends: Sequence[Backend],
    timer: Timer,
    times: Mapping[str, Times],
    absent: Mapping[str, str],
) -> list[Timing]:
    return [
        Timing(
            case,
            name,
            timer.description,
            times.get(name),
            absent.get(name, ""),
            min((each.p50_us for other, each in times.items() if other != name), default=None),
        )
        for name in (backend.name for backend in backends)
    ]
