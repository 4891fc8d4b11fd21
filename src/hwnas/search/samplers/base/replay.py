"""State of a strategy that is computed incrementally from the trials alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from hwnas.search.samplers.base.batch import History

__all__ = ["Replay"]

State = TypeVar("State")


class Replay(Generic[State]):
    """Computation of a state from a history, incremental if trials were only added.

    The state is a pure function of the history, so a resumed search gets the same state, and a long
    search processes each trial once.

    Args:
        begin: Function that makes the state before the first trial.
        learn: Function that updates the state in place by the trials from an index on.
    """

    def __init__(
        self, begin: Callable[[History], State], learn: Callable[[State, History, int], None]
    ) -> None:
        self._begin, self._learn = begin, learn
        self._seen: tuple[State, History] | None = None

    def __call__(self, history: History) -> State:
        """Return the state after all trials of a history."""
        if self._seen is not None and _continues(history, self._seen[1]):
            state, done = self._seen[0], len(self._seen[1])
        else:
            state, done = self._begin(history), 0
        self._learn(state, history, done)
        self._seen = state, history
        return state


def _continues(history: History, before: History) -> bool:
    n = len(before)
    return len(history) >= n and all(
        np.array_equal(now[:n], then)
        for now, then in (
            (history.codes, before.codes),
            (history.values, before.values),
            (history.violations, before.violations),
        )
    )
