"""Assignments of tasks to experts: each way to share them once."""

from __future__ import annotations

import itertools

import pytest

from hwnas.search_spaces.experts.assignments import (
    MOST_ASSIGNMENTS,
    assignment_count,
    assignments,
    expert_numbers,
    most_experts,
)

SIZES = [(tasks, experts) for tasks in range(1, 6) for experts in range(1, tasks + 1)]


def shared(text: object) -> frozenset[frozenset[int]]:
    """Return which tasks have an expert in common."""
    letters = list(text)  # type: ignore[call-overload]
    return frozenset(
        frozenset(t for t, own in enumerate(letters) if own == letter) for letter in set(letters)
    )


@pytest.mark.parametrize(("tasks", "experts"), SIZES)
def test_assignments_are_all_ways_to_share_experts_once_each(tasks: int, experts: int) -> None:
    """Renaming experts gives no second assignment."""
    found = assignments(tasks, experts)
    every = {shared(each) for each in itertools.product("vwxyz"[:experts], repeat=tasks)}
    assert {shared(each) for each in found} == every
    assert len(found) == len(every) == assignment_count(tasks, experts)


@pytest.mark.parametrize(("tasks", "experts"), SIZES)
def test_assignments_go_from_one_expert_to_the_most(tasks: int, experts: int) -> None:
    found = assignments(tasks, experts)
    counts = [len(set(each)) for each in found]
    assert counts == sorted(counts)
    assert (found[0], counts[-1]) == ("a" * tasks, experts)
    assert all(each[0] == "a" for each in found)


def test_assignment_counts_are_bell_and_stirling_numbers() -> None:
    """Sums of Stirling numbers of the second kind (OEIS A000110 and A102661)."""
    assert [assignment_count(n, n) for n in range(1, 8)] == [1, 2, 5, 15, 52, 203, 877]
    assert [assignment_count(n, 2) for n in range(1, 8)] == [1, 2, 4, 8, 16, 32, 64]


def test_most_experts_is_one_for_each_task_unless_that_gives_too_many_options() -> None:
    assert [most_experts(tasks) for tasks in (1, 2, 3, 6)] == [1, 2, 3, 6]
    for tasks in (7, 9, 20):
        most = most_experts(tasks)
        assert assignment_count(tasks, most) <= MOST_ASSIGNMENTS
        assert assignment_count(tasks, most + 1) > MOST_ASSIGNMENTS


def test_expert_numbers_are_those_of_the_letters() -> None:
    assert expert_numbers(("aab", "abc")).tolist() == [[0, 0, 1], [0, 1, 2]]
