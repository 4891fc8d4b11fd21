from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from hwnas.errors import ArtifactError
from hwnas.search_spaces import (
    Assembly,
    MobileNetSpace,
    OperatorCountTable,
    OperatorSignature,
    mobilenet,
    trace,
)
from hwnas.search_spaces.cost_model.workload import Workload


@pytest.fixture(scope="module")
def workloads() -> list[Workload]:
    space: MobileNetSpace = mobilenet((16, 16, 3), 10)
    rng = random.Random(0)
    return [space.workload(space.sample(rng)) for _ in range(5)]


def test_operator_count_table_adds_up_to_the_costs_of_each_workload(
    workloads: list[Workload],
) -> None:
    table = OperatorCountTable.of_workloads(workloads)
    assert len(table) == 5
    assert table.macs.tolist() == [workload.macs for workload in workloads]
    weights = table.total(np.array([step.weight_bytes for step in table.steps], float))
    for workload, counted in zip(workloads, weights, strict=True):
        # A weight that two operators read is counted at both.
        left = {i for op in workload.operators if not op.folded for i in op.inputs}
        read = [t.bytes for t in workload.tensors if t.role == "weight" and t.id in left]
        assert sum(read) <= counted <= workload.weight_bytes
    operators = table.total(np.ones(len(table.steps)))
    folded = Counter({w.id: sum(op.folded for op in w.operators) for w in workloads})
    assert all(
        folded.values()
    )  # the networks have batch normalisations, which are folded on export
    assert operators.tolist() == [len(w.operators) - folded[w.id] for w in workloads]
    assert len(table.steps) < sum(map(int, operators))  # equal steps are one


def test_operator_count_table_is_equal_from_parts_and_whole_networks() -> None:
    a, b, c = (
        OperatorSignature("conv", macs=5),
        OperatorSignature("pool"),
        OperatorSignature("linear", macs=2, weight_bytes=8),
    )
    parts = [
        [Counter({a: 1}), Counter({b: 2})],
        [Counter[OperatorSignature](), Counter({c: 3, a: 1})],
    ]
    codes = np.array([[0, 0], [0, 1], [1, 1], [1, 0]])
    together = OperatorCountTable.of_parts(Assembly(parts, codes))
    apart = OperatorCountTable.of(
        sum((parts[i][code] for i, code in enumerate(row)), Counter()) for row in codes
    )
    assert together.macs.tolist() == apart.macs.tolist() == [5, 16, 11, 0]
    count = {step: np.eye(len(together.steps))[i] for i, step in enumerate(together.steps)}
    assert together.total(count[a]).tolist() == [1, 2, 1, 0]
    assert together.total(count[b]).tolist() == [0, 0, 2, 2]


def test_operator_count_table_rows_keep_the_requested_order() -> None:
    table = OperatorCountTable.of(
        Counter({OperatorSignature("conv", macs=i): 1}) for i in (1, 2, 3)
    )
    assert table.rows(np.array([2, 0])).macs.tolist() == [3, 1]


def test_views_move_no_bytes_and_in_place_operators_read_and_write() -> None:
    import torch

    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(x + 1).reshape(x.shape[0], -1)

    steps = OperatorCountTable.of_workloads([trace(Both(), (2, 4, 4))]).steps
    by_kind = {step.kind: step for step in steps}
    assert by_kind["view"].bytes_moved == 0
    assert by_kind["activation"].bytes_moved == 2 * 4 * 32


def test_operator_count_table_survives_conversion_to_arrays(workloads: list[Workload]) -> None:
    table = OperatorCountTable.of_workloads(workloads)
    again = OperatorCountTable.from_arrays(table.to_arrays())
    assert again.steps == table.steps
    assert (again.counts != table.counts).nnz == 0
    with pytest.raises(ArtifactError, match="not a table of operator counts"):
        OperatorCountTable.from_arrays({"steps": table.to_arrays()["steps"]})


def test_operator_count_tables_can_be_stacked(workloads: list[Workload]) -> None:
    apart = [OperatorCountTable.of_workloads(some) for some in (workloads[:2], workloads[2:])]
    together = OperatorCountTable.stacked(apart)
    assert together.macs.tolist() == OperatorCountTable.of_workloads(workloads).macs.tolist()
    assert len(set(together.steps)) == len(together.steps)


def test_operator_count_table_per_image_divides_by_the_batch_size() -> None:
    space = mobilenet((16, 16, 3), 10)
    network = space.sample(random.Random(1))
    one = OperatorCountTable.of_workloads([space.workload(network)])
    eight = OperatorCountTable.of_workloads([space.workload(network, 8)])
    assert Counter(eight.per_image(8).steps) == Counter(one.steps)
