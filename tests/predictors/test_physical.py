from __future__ import annotations

import random

import numpy as np

from hwnas.predictors.benchmarks.cost_table import CostTable
from hwnas.predictors.features.physical import FEATURES, Machine, physical_features, quantities
from hwnas.search_spaces import OperatorCountTable, OperatorSignature, mobilenet, nasbench201


def test_physical_quantities_are_sums_over_operators() -> None:
    conv = OperatorSignature(
        "conv", macs=10**6, read_bytes=400, written_bytes=800, weight_bytes=100
    )
    dead = OperatorSignature("conv", macs=10**6, read_bytes=400, dead=True)
    table = OperatorCountTable.of([{conv: 3}, {conv: 1, dead: 2}])
    found = dict(zip(FEATURES, quantities(table).T.tolist(), strict=True))
    assert found["conv_count"] == [3, 1]
    assert found["dead_count"] == [0, 2]
    assert found["conv_macs"] == [3e6, 1e6]
    assert found["heavy_bytes"] == [3900, 1300]
    assert found["weight_bytes"] == [300, 100]
    assert found["dead_bytes"] == [0, 800]
    assert np.isfinite(physical_features(table)).all()


def test_machine_time_is_that_of_the_slower_of_arithmetic_and_memory() -> None:
    machine = Machine(gmacs=1, gbytes=1, overhead_us=0)
    assert machine.milliseconds(OperatorSignature("conv", macs=10**6, read_bytes=10)) == 1.0
    assert machine.milliseconds(OperatorSignature("conv", macs=10, read_bytes=3 * 10**6)) == 3.0
    assert machine.milliseconds(OperatorSignature("depthwise", macs=10**6)) == 5.0
    assert Machine(1, 1, overhead_us=4).milliseconds(OperatorSignature("activation")) == 0.004


def test_machine_runs_dead_operators_and_norms_only_if_eager() -> None:
    for step in (
        OperatorSignature("conv", macs=10**6, dead=True),
        OperatorSignature("norm", read_bytes=10**6),
    ):
        assert Machine(1, 1, 5).milliseconds(step) == 0
        assert Machine(1, 1, 5, eager=True).milliseconds(step) > 1


def test_physical_features_differ_for_most_networks(table: CostTable) -> None:
    steps = table.space.steps(table.codes)
    assert steps is not None
    assert len(np.unique(physical_features(steps).round(9), axis=0)) > 250


def test_physical_features_agree_for_encoded_and_traced_networks() -> None:
    rng = random.Random(0)
    for space in (mobilenet((16, 16, 3), 10), nasbench201((8, 8, 3), 4, channels=4, cells=1)):
        networks = [space.sample(rng) for _ in range(6)]
        drafted = space.steps(np.array([space.encode(network) for network in networks]))
        assert drafted is not None
        traced = OperatorCountTable.of_workloads([space.workload(network) for network in networks])
        np.testing.assert_allclose(
            physical_features(drafted), physical_features(traced), rtol=1e-12
        )
