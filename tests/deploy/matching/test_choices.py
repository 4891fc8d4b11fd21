"""When several operators were measured to be faster than one that does the same."""

from __future__ import annotations

from hwnas.deploy.matching.choices import is_slower
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.kernels.tuning.tuned import REFERENCE, TunedEntry

SIZES = {"rows": 8}


def times(us: float) -> Times:
    return Times(us, us, us, 10)


def measured(
    us: float, reference_us: float, kernel: bool = True
) -> tuple[KernelChoice, dict[str, int]]:
    entry = TunedEntry(
        "pointwise", "float16", SIZES, {}, times(us), "", {REFERENCE: times(reference_us)}, {}, ""
    )
    return KernelChoice({}, kernel, "", entry), SIZES


def test_times_of_all_parts_are_added() -> None:
    parts = [measured(3, 9), measured(4, 9)]
    assert is_slower([measured(8, 9)], parts)
    assert not is_slower([measured(6, 9)], parts)


def test_a_part_that_pytorch_computes_takes_its_time() -> None:
    assert is_slower([measured(6, 9)], [measured(7, 5, kernel=False)])


def test_what_was_not_measured_at_these_sizes_is_not_known() -> None:
    elsewhere = (measured(1, 9)[0], {"rows": 9})
    assert not is_slower([measured(8, 9)], [elsewhere])
    assert not is_slower([measured(8, 9)], [(KernelChoice({}), SIZES)])
    assert not is_slower([measured(8, 9)], [])
