"""Predicted costs of networks with an early exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from hwnas.deploy import Target
from hwnas.predictors import Estimate
from hwnas.predictors.expected_cost import expected_costs
from hwnas.search_spaces import Architecture, Workload, resnet
from hwnas.search_spaces.early_exit import EarlyExitSpace, EarlyExitWorkload

SPACE = EarlyExitSpace(resnet((8, 8, 1), 10))
TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")
BATCHED = Target.parse("cpu-onnxruntime-fp32-b2-t1")


@dataclass(frozen=True)
class LatencyByMacs:
    """Cost source with a millisecond for each thousand multiply-accumulates."""

    metric: str = "latency_ms"

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        found = []
        for workload, target in zip(workloads, targets, strict=True):
            ms = sum(operator.macs for operator in workload.operators) / 1000
            found.append(Estimate(self.metric, ms, ms / 10, "modelled", target.name))
        return found


def network(share: float) -> Architecture:
    values = SPACE.networks.largest().as_dict()
    return SPACE.architecture({**values, "exit_share": share, "exit_after": "stages.0"})


def test_cost_of_a_network_with_an_exit_is_the_mean_over_images() -> None:
    workloads = [SPACE.workload(network(share)) for share in (0, 0.3, 0.7)]
    plain, some, many = expected_costs(LatencyByMacs(), workloads, [TARGET] * 3)
    assert plain == LatencyByMacs().cost(workloads[:1], [TARGET])[0]
    for found, workload, share in ((some, workloads[1], 0.3), (many, workloads[2], 0.7)):
        assert isinstance(workload, EarlyExitWorkload)
        whole, early = (
            sum(operator.macs for operator in each.operators) / 1000
            for each in (workload, workload.until_exit)
        )
        assert found.mean == pytest.approx(share * early + (1 - share) * whole)
        assert found.std == pytest.approx(found.mean / 10)
        assert found.mean == pytest.approx(workload.macs / 1000, abs=1e-3)
        low, high = found.interval90
        assert low < found.mean < high


def test_batch_is_cheaper_only_if_all_of_its_images_leave() -> None:
    workload = SPACE.workload(network(0.7))
    single, double = expected_costs(LatencyByMacs(), [workload] * 2, [TARGET, BATCHED])
    assert isinstance(workload, EarlyExitWorkload)
    [early] = LatencyByMacs().cost([workload.until_exit], [TARGET])
    [whole] = LatencyByMacs().cost([workload], [TARGET])
    assert single.mean < double.mean
    assert double.mean == pytest.approx(0.49 * early.mean + 0.51 * whole.mean)


def test_peak_memory_is_that_of_the_whole_network() -> None:
    workload, source = SPACE.workload(network(0.7)), LatencyByMacs("peak_memory_bytes")
    assert expected_costs(source, [workload], [TARGET]) == source.cost([workload], [TARGET])
