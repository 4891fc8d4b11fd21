"""Memory accesses of the programs of a kernel, and the conflicts between them."""

import numpy as np
import pytest

from hwnas.kernels.verifier.process.conflicts import Accesses, Kind

ORDERED = ("ACQUIRE_RELEASE", "GPU")
Step = tuple[int, Kind, int, int]  # program, kind of access, address, value that is written


def conflicts(
    *steps: Step, semantics: str = "ACQUIRE_RELEASE", scope: str = "GPU", size: int = 4
) -> list[str]:
    found = Accesses("kernel")
    found.programs = 8
    for program, kind, place, value in steps:
        places, values = np.array([place], np.uint64), np.array([value], np.int32)
        atomic = kind in (Kind.ATOMIC, Kind.ATOMIC_READ)
        named = (semantics, scope) if atomic else ("", "")
        found.note(kind, places, values, size, program, *named)
    return found.conflicts()


R, W, A = Kind.READ, Kind.WRITE, Kind.ATOMIC
LOCK, DATA = 0, 64
READ_LAST = (2, R, DATA, 0)


@pytest.mark.parametrize(
    "steps",
    [
        [(0, W, DATA, 1), (1, W, DATA, 2)],
        [(0, W, DATA, 1), (1, R, DATA, 0)],
        [(0, R, DATA, 0), (1, W, DATA, 1)],
        [(0, A, DATA, 1), (1, W, DATA, 1)],
        [(0, W, DATA, 1), (1, A, DATA, 1)],
        [(0, A, DATA, 1), (1, R, DATA, 1)],
        # Atomic operations that order nothing: before both, on other places, after the writing
        [(0, A, LOCK, 1), (1, A, LOCK, 1), (0, W, DATA, 1), (1, W, DATA, 2)],
        [(0, W, DATA, 1), (0, A, LOCK, 1), (1, A, LOCK + 4, 1), (1, W, DATA, 2)],
        [(0, W, DATA, 1), (1, W, DATA, 2), (0, A, LOCK, 1), (1, A, LOCK, 1)],
    ],
)
def test_accesses_report_unordered_conflicts_between_programs(steps: list[Step]) -> None:
    assert conflicts(*steps)


@pytest.mark.parametrize(
    "steps",
    [
        [(0, W, DATA, 1), (1, W, DATA + 4, 2), (0, R, DATA, 0)],
        [(0, W, DATA, 1), (1, W, DATA, 1)],
        [(0, A, DATA, 1), (1, A, DATA, 2)],
        [(0, W, DATA, 1), (0, A, LOCK, 1), (1, A, LOCK, 1), (1, R, DATA, 0), (1, W, DATA, 3)],
        [(0, W, DATA, 1), (0, A, LOCK, 1), (1, A, LOCK, 1), (1, A, 4, 1), (2, A, 4, 1), READ_LAST],
    ],
)
def test_accesses_report_no_conflict_without_overlap_or_with_order(steps: list[Step]) -> None:
    assert not conflicts(*steps)


def test_relaxed_or_block_scoped_atomics_do_not_order_accesses() -> None:
    steps = [(0, W, DATA, 1), (0, A, LOCK, 1), (1, A, LOCK, 1), (1, R, DATA, 0)]
    assert not conflicts(*steps)
    assert conflicts(*steps, semantics="RELAXED")
    assert conflicts(*steps, scope="CTA")


def test_accesses_of_different_sizes_conflict_where_they_overlap() -> None:
    found = Accesses("kernel")
    found.programs = 2
    found.note(W, np.array([0], np.uint64), np.array([7], np.int64), 8, 0)
    found.note(W, np.array([4], np.uint64), np.array([9], np.int8), 1, 1)
    assert found.conflicts()


def test_accesses_report_lanes_of_a_program_that_write_one_address() -> None:
    found = Accesses("kernel")
    found.note(W, np.array([0, 0], np.uint64), np.array([1, 2], np.int32), 4, 0)
    assert found.conflicts() == ["kernel: a program writes several values to one address"]


@pytest.mark.slow
def test_accesses_report_a_race_after_thousands_of_atomics() -> None:
    found = Accesses("kernel")
    found.programs = 20_000
    lock = np.array([LOCK], np.uint64)
    for turn in range(5200):
        found.note(A, lock, np.array([1], np.int32), 4, turn, *ORDERED)
    for program in (5, 6):
        values = np.array([program], np.int32)
        found.note(W, np.array([DATA], np.uint64), values, 4, program)
    assert found.conflicts()
