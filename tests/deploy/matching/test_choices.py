"""Choice between one operator and several that do the same, by measured times."""

from __future__ import annotations

import torch

from hwnas.deploy.matching.choices import Decided, is_slower
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.kernels.tuning.tuned import REFERENCE, TunedEntry

SIZES = {"images": 1, "pixels": 8, "inputs": 4, "outputs": 4, "gate": 0, "residual": 0}
INPUTS = pointwise.example(SIZES, torch.float16, torch.Generator(), torch.device("cpu"))


def times(us: float) -> Times:
    return Times(us, us, us, 10)


def measured(
    us: float, reference_us: float, kernel: bool = True, sizes: dict[str, int] = SIZES
) -> Decided:
    entry = TunedEntry(
        "pointwise", "float16", sizes, {}, times(us), "", {REFERENCE: times(reference_us)}, {}, ""
    )
    return Decided(pointwise, INPUTS, KernelChoice({}, kernel, "", entry))


def test_is_slower_adds_the_times_of_all_parts() -> None:
    parts = [measured(3, 9), measured(4, 9)]
    assert is_slower([measured(8, 9)], parts)
    assert not is_slower([measured(6, 9)], parts)


def test_is_slower_takes_the_time_of_pytorch_for_its_parts() -> None:
    assert is_slower([measured(6, 9)], [measured(7, 5, kernel=False)])


def test_is_slower_is_false_without_times_at_these_sizes() -> None:
    elsewhere = measured(1, 9, sizes={**SIZES, "pixels": 9})
    assert not is_slower([measured(8, 9)], [elsewhere])
    assert not is_slower([measured(8, 9)], [Decided(pointwise, INPUTS, KernelChoice({}))])
    assert not is_slower([measured(8, 9)], [])
