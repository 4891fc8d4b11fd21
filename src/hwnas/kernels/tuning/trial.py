"""Task of the tuner, and trials: configurations with all that is known of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.operator import Config, Inputs, Operator, Sizes
from hwnas.kernels.resources import Resources
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.constraints import Problem
from hwnas.kernels.tuning.roofline import LaunchWork

__all__ = ["Footprint", "TuningTask", "TuningTrial", "Verdict", "footprint", "key_of"]

Verdict = Literal["untried", "refused", "failed", "wasteful", "wrong", "slow", "timed"]
"""Verdict on a configuration.

``untried``: not tried yet. ``refused``: no solution of the problem. ``failed``: does not compile or
run. ``wasteful``: dropped for what the compiler reports or the cost model predicts. ``wrong``:
wrong results. ``slow``: dropped after a few runs. ``timed``: timed to the end.
"""


@dataclass(frozen=True)
class TuningTask:
    """Tuning task: an operator at some sizes, on a GPU.

    Attributes:
        operator: Name of the operator.
        sizes: Sizes of the inputs.
        dtype: Type of the first input.
        gpu: GPU on which the operator is to be fast.
        problem: Problem whose solutions are the allowed configurations.
        starts: Configurations to be tried first: the default, and good ones of other sizes.
    """

    operator: str
    sizes: Sizes
    dtype: torch.dtype
    gpu: Accelerator
    problem: Problem
    starts: tuple[Config, ...] = ()


@dataclass(frozen=True)
class Footprint:
    """Number of programs and memory traffic of a configuration, known before compilation.

    Attributes:
        programs: Number of programs of all kernels.
        busiest_bytes: Bytes that the multiprocessor with most programs requests from the caches.
    """

    programs: int
    busiest_bytes: float


@dataclass(frozen=True)
class TuningTrial:
    """Configuration and what is known of it.

    Attributes:
        config: Configuration of the kernels.
        verdict: Outcome of the trial so far.
        reason: Reason for the verdict, in words; empty if the configuration was timed.
        footprint: Programs and traffic; None if the configuration was refused.
        resources: Resource usage of each kernel; empty if not compiled.
        times: Quantiles of the times; None if not timed. A slow configuration has a few runs only.
    """

    config: Config
    verdict: Verdict
    reason: str = ""
    footprint: Footprint | None = None
    resources: tuple[Resources, ...] = ()
    times: Times | None = None

    @property
    def p50_us(self) -> float:
        """Median time in microseconds; infinite if not timed."""
        return self.times.p50_us if self.times else math.inf

    @property
    def spilled_bytes(self) -> int:
        """Bytes of spilled registers per thread, summed over the kernels."""
        return sum(part.spilled_bytes for part in self.resources)

    def occupancy(self, gpu: Accelerator) -> float:
        """Return the least occupancy of the kernels."""
        return min((part.occupancy(gpu) for part in self.resources), default=0.0)


def footprint(operator: Operator, inputs: Inputs, config: Config, gpu: Accelerator) -> Footprint:
    """Return the number of programs and the traffic of a configuration, from its kernels' grids."""
    work = LaunchWork.of(operator, inputs, config, gpu)
    return Footprint(work.programs, work.busiest_bytes)


def key_of(config: Config) -> tuple[tuple[str, int], ...]:
    """Return a key that is the same for equal configurations, in any order of their names."""
    return tuple(sorted(config.items()))
