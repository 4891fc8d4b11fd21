"""Times of what computes the same, in turn, so that none of it has the machine at a better hour."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from hwnas.kernels.timer import Stopwatch, Timer, Times

__all__ = ["fair", "raced", "why"]

_ROUNDS, _RUNS = 5, 6
_SECONDS = 10.0  # after which no round begins; on a processor there are layers that take one


def raced(
    contenders: Mapping[str, Callable[[], object]], timer: Timer
) -> tuple[dict[str, Times], dict[str, str]]:
    """Times by name, and by name why there are none."""
    stopwatches: dict[str, Stopwatch] = {}
    absent = {}
    for name, run in contenders.items():
        try:
            stopwatches[name] = timer.stopwatch(run)
        except Exception as error:  # as many as there are libraries
            absent[name] = why(error)
    times: dict[str, list[float]] = {name: [] for name in stopwatches}
    end = time.monotonic() + _SECONDS
    for _ in range(_ROUNDS):
        for name, stopwatch in stopwatches.items():
            times[name] += stopwatch(_RUNS)
        if time.monotonic() > end:
            break
    return {name: Times.of(found) for name, found in times.items()}, absent


@contextlib.contextmanager
def fair() -> Iterator[None]:
    """PyTorch as it is fastest: cuDNN tries its algorithms, and nothing is kept for gradients."""
    torch._dynamo.reset()  # it gives up on a function that was compiled for too many sizes
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        yield


def why(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
