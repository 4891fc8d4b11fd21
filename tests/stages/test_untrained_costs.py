"""Costs of untrained networks compared with the limits of a recipe."""

import math
from dataclasses import replace

import pytest

from hwnas.errors import InfeasibleError
from hwnas.planning.speed import probes
from hwnas.search.objectives.objective import Objective
from hwnas.search_spaces import union
from hwnas.stages.untrained_costs import excesses, limited, most_macs

SPACE = union((28, 28, 1), 10, "cpu")
KINDS = probes(SPACE)
ACCURACY = Objective("accuracy", "maximize", limit=0.9)


def macs_below(limit: float) -> list[Objective]:
    return [ACCURACY, Objective("macs", "minimize", limit=limit)]


def test_limited_selects_objectives_that_are_costs_with_a_limit() -> None:
    objectives = macs_below(1e6)
    assert limited([*objectives, Objective("params", "minimize")]) == objectives[1:]


def test_excess_is_the_highest_ratio_of_a_cost_to_its_limit() -> None:
    network = SPACE.smallest()
    workload = SPACE.workload(network)
    objectives = [
        Objective("macs", "minimize", limit=2.0 * workload.macs),
        Objective("params", "minimize", limit=0.5 * workload.params),
    ]
    assert excesses(SPACE, [network], objectives) == pytest.approx([2.0])


@pytest.mark.parametrize("limit", [1e6, 5e6, 2e7])
def test_most_macs_equals_a_limit_of_macs(limit: float) -> None:
    assert most_macs(SPACE, KINDS, macs_below(limit)) == pytest.approx(limit, rel=1e-6)


def test_most_macs_handles_limits_that_all_or_no_networks_keep() -> None:
    assert most_macs(SPACE, KINDS, [ACCURACY]) is None
    assert most_macs(SPACE, KINDS, macs_below(1e12)) is None
    least = SPACE.workload(SPACE.smallest()).macs
    assert most_macs(SPACE, KINDS, macs_below(least / 1.2)) == 0
    with pytest.raises(InfeasibleError, match=r"limit of macs: .* 2 times the limit"):
        most_macs(SPACE, KINDS, macs_below(least / 2))


@pytest.mark.slow
def test_most_macs_is_small_for_a_tight_latency_limit() -> None:
    target = "cpu-onnxruntime-fp32-b1-t1"
    largest = SPACE.workload(SPACE.largest()).macs
    unit = Objective("latency_ms", "minimize", target=target, limit=1.0)
    latencies_ms = excesses(SPACE, list(KINDS), [unit])
    tight = replace(unit, limit=math.sqrt(min(latencies_ms) * max(latencies_ms)))
    found = most_macs(SPACE, KINDS, [tight])
    assert found is not None
    assert found < largest
    assert most_macs(SPACE, KINDS, [Objective("latency_ms", "minimize", target, 1e4)]) is None
