"""Choice between one operator and several that do the same, by measured times."""

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


def test_is_slower_adds_the_times_of_all_parts() -> None:
    parts = [measured(3, 9), measured(4, 9)]
    assert is_slower([measured(8, 9)], parts)
    assert not is_slower([measured(6, 9)], parts)


def test_is_slower_takes_the_time_of_pytorch_for_its_parts() -> None:
    assert is_slower([measured(6, 9)], [measured(7, 5, kernel=False)])


def test_is_slower_is_false_without_times_at_these_sizes() -> None:
    elsewhere = (measured(1, 9)[0], {"rows": 9})
    assert not is_slower([measured(8, 9)], [elsewhere])
    assert not is_slower([measured(8, 9)], [(KernelChoice({}), SIZES)])
    assert not is_slower([measured(8, 9)], [])
