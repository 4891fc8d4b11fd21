"""Assignments of tasks to the experts of a block, without a second name for any of them.

The letter at position t of an assignment is the expert of task t: in ``"abb"``, the first task has
expert a, and the other two share expert b. The first task has expert a, and each further task has
the expert of an earlier task or the next letter. These texts are the restricted growth strings of
set partitions (Knuth, The Art of Computer Programming 4A, section 7.2.1.5). Numbering the experts
in another order therefore gives no second assignment.
"""

from __future__ import annotations

from collections import Counter
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt

__all__ = [
    "FIRST",
    "MOST_ASSIGNMENTS",
    "assignment_count",
    "assignments",
    "expert_numbers",
    "most_experts",
]

FIRST = ascii_lowercase[0]
"""Expert of the first task."""
MOST_ASSIGNMENTS = 256
"""Largest number of assignments among which a choice selects."""


def assignments(tasks: int, experts: int) -> tuple[str, ...]:
    """Return all assignments of some tasks to at most so many experts, those with few first.

    Args:
        tasks: Number of tasks, at least 1.
        experts: Largest number of experts, 1 to 26.
    """
    found = [""]
    for _ in range(tasks):
        found = [
            text + letter
            for text in found
            for letter in ascii_lowercase[: min(len(set(text)) + 1, experts)]
        ]
    return tuple(sorted(found, key=lambda text: (len(set(text)), text)))


def assignment_count(tasks: int, experts: int) -> int:
    """Return the number of `assignments`, without listing them."""
    by_used = Counter({0: 1})
    for _ in range(tasks):
        after: Counter[int] = Counter()
        for used, ways in by_used.items():
            after[used] += ways * used
            after[min(used + 1, experts)] += ways * (used < experts)
        by_used = after
    return by_used.total()


def most_experts(tasks: int) -> int:
    """Return the largest number of experts that gives at most `MOST_ASSIGNMENTS`."""
    able = [n for n in range(1, tasks + 1) if assignment_count(tasks, n) <= MOST_ASSIGNMENTS]
    return able[-1]


def expert_numbers(options: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return the number of each task's expert, from 0, of shape (assignments, tasks)."""
    return np.array([[ascii_lowercase.index(letter) for letter in text] for text in options])
