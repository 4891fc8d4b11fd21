from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from hwnas.search_spaces import MobileNetSpace, Step, StepTable, mobilenet, trace
from hwnas.search_spaces.workload import Workload


@pytest.fixture(scope="module")
def workloads() -> list[Workload]:
    space: MobileNetSpace = mobilenet((16, 16, 3), 10)
    rng = random.Random(0)
    return [space.workload(space.sample(rng)) for _ in range(5)]


def test_a_table_of_workloads_adds_up_to_what_each_workload_says(workloads: list[Workload]) -> None:
    table = StepTable.of_workloads(workloads)
    assert len(table) == 5
    assert table.macs.tolist() == [workload.macs for workload in workloads]
    weights = table.total(np.array([step.weight_bytes for step in table.steps], float))
    # A bias or a weight that two operators read is counted at both.
    assert (weights >= [workload.weight_bytes for workload in workloads]).all()
    operators = table.total(np.ones(len(table.steps)))
    assert operators.tolist() == [len(workload.operators) for workload in workloads]
    assert len(table.steps) < sum(map(int, operators))  # equal steps are one


def test_parts_and_whole_networks_give_the_same_table() -> None:
    a, b, c = Step("conv", macs=5), Step("pool"), Step("linear", macs=2, weight_bytes=8)
    parts = [[Counter({a: 1}), Counter({b: 2})], [Counter[Step](), Counter({c: 3, a: 1})]]
    codes = np.array([[0, 0], [0, 1], [1, 1], [1, 0]])
    together = StepTable.of_parts(parts, codes)
    apart = StepTable.of(
        sum((parts[i][code] for i, code in enumerate(row)), Counter()) for row in codes
    )
    assert together.macs.tolist() == apart.macs.tolist() == [5, 16, 11, 0]
    count = {step: np.eye(len(together.steps))[i] for i, step in enumerate(together.steps)}
    assert together.total(count[a]).tolist() == [1, 2, 1, 0]
    assert together.total(count[b]).tolist() == [0, 0, 2, 2]


def test_rows_keep_their_order() -> None:
    table = StepTable.of(Counter({Step("conv", macs=i): 1}) for i in (1, 2, 3))
    assert table.rows(np.array([2, 0])).macs.tolist() == [3, 1]


def test_views_move_nothing_and_in_place_results_move_there_and_back() -> None:
    import torch

    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(x + 1).reshape(x.shape[0], -1)

    steps = StepTable.of_workloads([trace(Both(), (2, 4, 4))]).steps
    by_kind = {step.kind: step for step in steps}
    assert by_kind["view"].bytes_moved == 0
    assert by_kind["activation"].bytes_moved == 2 * 4 * 32
