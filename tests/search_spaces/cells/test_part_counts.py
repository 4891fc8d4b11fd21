"""Operators of cells without a trace; test_space_conformance.py checks every space."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hwnas.search_spaces import CellSpace, OperatorCountTable
from hwnas.search_spaces.tabular import NasBench201Space

SMALL = CellSpace((9, 14, 2), outputs=4, channels=4, cells=2)  # halved to 5x7 and 3x4
codes = st.lists(st.integers(0, 4), min_size=6, max_size=6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(code=codes)
@example(code=[1, 1, 1, 0, 2, 4])  # a node that is added to itself
@example(code=[1, 1, 0, 1, 1, 0])  # the input once more, and again, passed on by node 1
@example(code=[0, 0, 0, 0, 0, 0])
@example(code=[3, 4, 3, 4, 0, 0])  # convolutions that nothing depends on
@example(code=[0, 0, 1, 1, 4, 2])  # a sum with zeros that node 2 passed on from node 1
def test_cell_steps_equal_those_of_a_trace(code: list[int]) -> None:
    drafted = SMALL.steps(np.array([code]))
    traced = OperatorCountTable.of_workloads([SMALL.workload(SMALL.decode(code))])
    found = {
        step: count
        for step, count in zip(drafted.steps, drafted.counts.toarray()[0], strict=True)
        if count
    }
    assert found == dict(zip(traced.steps, traced.counts.toarray()[0], strict=True))


@given(code=codes)
def test_cell_depth_equals_that_of_the_tabular_space(code: list[int]) -> None:
    row = [[0, 1, 4, 2, 3][option] for option in code]  # as tables number operations
    assert SMALL.architecture_of(row) == SMALL.decode(code)
    depth = NasBench201Space().depth(np.array([row]))
    assert SMALL.depth(np.array([code])).tolist() == depth.tolist()
