"""Times of functions that are called in turn, so that other work disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

__all__ = ["seconds_in_turn"]


def seconds_in_turn(ways: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median time of each function in seconds, over rounds of one call of each."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, own in zip(ways, times, strict=True):
            begun = time.perf_counter()
            way()
            own.append(time.perf_counter() - begun)
    return [median(own) for own in times]
