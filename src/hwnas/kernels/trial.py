"""What the tuner is given, and what it learns of one configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.constraints import Problem
from hwnas.kernels.operator import Config, Inputs, Operator, Sizes
from hwnas.kernels.resources import Resources
from hwnas.kernels.timer import Times

__all__ = ["Footprint", "Task", "Trial", "Verdict", "footprint", "key_of"]

Verdict = Literal["untried", "refused", "failed", "wasteful", "wrong", "slow", "timed"]
"""Of a configuration: not tried yet; no solution of the problem; it does not compile or run;
dropped for what the compiler says of it; wrong results; dropped after a few runs; timed."""


@dataclass(frozen=True)
class Task:
    """What is tuned.

    Attributes:
        operator: Its name.
        sizes: Of its inputs.
        dtype: Of its first input.
        card: What it shall be fast on.
        problem: The configurations that there are.
        starts: Configurations to be tried first: the default, and what is good at other sizes.
    """

    operator: str
    sizes: Sizes
    dtype: torch.dtype
    card: Accelerator
    problem: Problem
    starts: tuple[Config, ...] = ()


@dataclass(frozen=True)
class Footprint:
    """What is known of a configuration before it is compiled.

    Attributes:
        programs: Of all its kernels.
        busiest_bytes: That the multiprocessor with most programs asks of the caches.
    """

    programs: int
    busiest_bytes: float


@dataclass(frozen=True)
class Trial:
    """One configuration and what is known of it.

    Attributes:
        config: The configuration.
        verdict: What became of it.
        reason: For that, in words; empty where it was timed.
        footprint: None if it was refused.
        resources: Of each of its kernels; none if they were not compiled.
        times: None where it was not timed; of a few runs only where it is slow.
    """

    config: Config
    verdict: Verdict
    reason: str = ""
    footprint: Footprint | None = None
    resources: tuple[Resources, ...] = ()
    times: Times | None = None

    @property
    def p50_us(self) -> float:
        """Its median in microseconds; infinite where it was not timed."""
        return self.times.p50_us if self.times else math.inf

    @property
    def spilled_bytes(self) -> int:
        """Of all its kernels, per thread."""
        return sum(part.spilled_bytes for part in self.resources)

    def occupancy(self, card: Accelerator) -> float:
        """The least of its kernels."""
        return min((part.occupancy(card) for part in self.resources), default=0.0)


def footprint(
    operator: Operator, inputs: Inputs, sizes: Sizes, config: Config, card: Accelerator
) -> Footprint:
    """What a configuration asks of a card, by the grids of its kernels."""
    first: torch.Tensor = next(iter(inputs.values()))
    launches = operator.launches(inputs, operator.outputs(inputs), config)
    grids = [math.prod(launch.grid) for launch in launches]
    share = max(-(-programs // card.multiprocessors) / programs for programs in grids)
    return Footprint(sum(grids), share * operator.traffic(sizes, first.dtype, config))


def key_of(config: Config) -> tuple[tuple[str, int], ...]:
    """The same for equal configurations, in whatever order their names are."""
    return tuple(sorted(config.items()))
