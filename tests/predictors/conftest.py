"""A device whose latency is known exactly."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hwnas.deploy.device import Target
from hwnas.search_spaces import MobileNetSpace, Workload, mobilenet

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def space() -> MobileNetSpace:
    return mobilenet((16, 16, 3), 10)


@pytest.fixture(scope="session")
def true_latency_ms() -> Callable[[Workload], float]:
    """A roofline whose constants are not those of `hwnas.predictors.features`, and a cache."""

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
