"""Operators of SimpleNets without a trace; test_space_conformance.py checks every space."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.search_spaces import Group, OperatorCountTable, SimpleNetConfig, SimpleNetSpace

# Groups end with several numbers of channels, and sides are not halved evenly.
SPACE = SimpleNetSpace(
    SimpleNetConfig(
        groups=(
            Group((16, 24, 32), (3, 1, 5), (1, 2, 3), (0.5, 1)),
            Group((16, 16), depth=(1, 2), width=(0.5, 1)),
            Group((24,), width=(0.3, 0.7, 1)),
        ),
        resolution=(7, 9, 12),
        in_channels=2,
        outputs=3,
    )
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_simplenet_steps_equal_those_of_a_trace(data: st.DataObject) -> None:
    code = [data.draw(st.integers(0, len(choice.options) - 1)) for choice in SPACE.choices]
    drafted = SPACE.steps(np.array([code]))
    traced = OperatorCountTable.of_workloads([SPACE.workload(SPACE.decode(code))])
    assert drafted is not None
    found = {
        step: count
        for step, count in zip(drafted.steps, drafted.counts.toarray()[0], strict=True)
        if count
    }
    assert found == dict(zip(traced.steps, traced.counts.toarray()[0], strict=True))
