"""Interleaved timing of calls that compute the same, so that noise affects all of them alike."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from hwnas.kernels.suite.timer import CallTimer, Timer, Times

__all__ = ["fair", "raced", "why"]

_ROUNDS, _RUNS = 5, 6
_SECONDS = 10.0  # after which no round begins; some layers take one second on a CPU


def raced(
    calls: Mapping[str, Callable[[], object]], timer: Timer
) -> tuple[dict[str, Times], dict[str, str]]:
    """Return times by name, and by name the reasons why others have none."""
    timers: dict[str, CallTimer] = {}
    absent = {}
    for name, run in calls.items():
        try:
            timers[name] = timer.prepare(run)
        except Exception as error:  # each library raises errors of its own
            absent[name] = why(error)
    times: dict[str, list[float]] = {name: [] for name in timers}
    end = time.monotonic() + _SECONDS
    for _ in range(_ROUNDS):
        for name, timed in timers.items():
            times[name] += timed(_RUNS)
        if time.monotonic() > end:
            break
    return {name: Times.of(found) for name, found in times.items()}, absent


@contextlib.contextmanager
def fair() -> Iterator[None]:
    """Set PyTorch up for speed: cuDNN tries its algorithms, and no gradients are recorded."""
    torch._dynamo.reset()  # Dynamo gives up on a function that it compiled for too many sizes
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        yield


def why(error: Exception) -> str:
    """Return an error as one line of text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
