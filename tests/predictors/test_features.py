from __future__ import annotations

import numpy as np
import pytest

from hwnas.predictors.features import FEATURE_NAMES, features, roofline_ms
from hwnas.search_spaces import MobileNetSpace, Operator, TensorSpec, Workload


def test_one_row_a_workload_and_all_are_numbers(unseen: list[Workload]) -> None:
    table = features(unseen)
    assert table.shape == (len(unseen), len(FEATURE_NAMES))
    assert np.isfinite(table).all()
    np.testing.assert_array_equal(features(unseen[3:4]), table[3:4])


def test_the_largest_network_is_largest_in_what_only_grows(space: MobileNetSpace) -> None:
    small, large = features([space.workload(space.smallest()), space.workload(space.largest())])
    for name in ("log_roofline_ms", "log_macs", "log_bytes_moved", "log_operators"):
        assert small[FEATURE_NAMES.index(name)] < large[FEATURE_NAMES.index(name)]


def one_operator(macs: int, side: int, kind: str = "pointwise", dead: bool = False) -> Workload:
    tensors = (
        TensorSpec(0, (1, 1, side, side), "input"),
        TensorSpec(1, (1, 1, side, side), "activation"),
    )
    operator = Operator(kind, "convolution", (0,), (1,), macs, dead=dead)  # type: ignore[arg-type]
    return Workload((operator,), tensors, (1,), params=0)


def test_a_roofline_worked_out_by_hand() -> None:
    computing = one_operator(macs=3_000_000, side=10)  # 0.1 ms, and 800 bytes
    assert roofline_ms(computing) == pytest.approx(0.002 + 0.1)
    moving = one_operator(macs=30, side=500)  # 2 MB, 0.2 ms
    assert roofline_ms(moving) == pytest.approx(0.002 + 0.2)


@pytest.mark.parametrize("workload", [
    one_operator(10, 10, dead=True), one_operator(10, 10, "view"), one_operator(10, 10, "norm"),
])  # fmt: skip
def test_what_a_compiler_takes_out_costs_nothing(workload: Workload) -> None:
    assert roofline_ms(workload) == 0
