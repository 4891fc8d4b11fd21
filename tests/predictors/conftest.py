"""Simulated devices with exactly known costs."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from hwnas.deploy.targets.target import Target
from hwnas.predictors.benchmarks.cost_table import CostTable
from hwnas.predictors.features.physical import Machine
from hwnas.search_spaces import MobileNetSpace, Workload, mobilenet
from hwnas.search_spaces.tabular import NasBench201Space

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")
MACHINES = {
    "slow": Machine(3, 3, 25, 0.3),
    "core": Machine(25, 12, 3, 0.2),
    "server": Machine(60, 40, 4, 0.2, eager=True),
    "gpu": Machine(2000, 300, 30, 0.1, eager=True),
    "chip": Machine(500, 6, 1, 0.1),
}


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def space() -> MobileNetSpace:
    return mobilenet((16, 16, 3), 10)


@pytest.fixture(scope="session")
def true_latency_ms() -> Callable[[Workload], float]:
    """Return a roofline with a cache, unlike that of `hwnas.predictors.features.physical`."""

    def latency(workload: Workload) -> float:
        total = 0.03
        for operator in workload.operators:
            if operator.dead or operator.kind in ("view", "norm"):
                continue
            moved = workload.bytes_moved(operator)
            speed = {"depthwise": 1.5e6, "pointwise": 2e7}.get(operator.kind, 9e6)
            total += 0.006 + max(operator.macs / speed, moved / (2e7 if moved < 1e5 else 5e6))
        return total

    return latency


@pytest.fixture(scope="session")
def unseen(space: MobileNetSpace) -> list[Workload]:
    rng = random.Random(99)
    return [space.workload(space.sample(rng)) for _ in range(40)]


@pytest.fixture(scope="session")
def table() -> CostTable:
    """Random NAS-Bench-201 cells on five machines of the roofline model, with a little noise."""
    rng = np.random.default_rng(0)
    space = NasBench201Space()
    codes = rng.integers(0, 5, (600, 6))
    steps = space.steps(codes)
    ms = [[machine.milliseconds(s) for machine in MACHINES.values()] for s in steps.steps]
    costs = steps.total(np.array(ms)) * np.exp(0.02 * rng.standard_normal((600, len(MACHINES))))
    accuracies = 50 + 40 * (1 - np.exp(-steps.macs / 5e7)) + rng.standard_normal(600)
    return CostTable(
        space, codes, "latency", tuple(MACHINES), costs, accuracies=accuracies[:, None]
    )
