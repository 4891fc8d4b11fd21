"""Timers of work on a GPU or on a CPU.

On a GPU, CUDA events enclose replays of CUDA graphs; the description says whether the cache is cold
or warm.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from hwnas.errors import DeviceError
from hwnas.kernels.accelerator import Accelerator

__all__ = ["CallTimer", "GpuTimer", "ProcessorTimer", "Timer", "Times", "done"]

T = TypeVar("T")

CallTimer = Callable[[int], Sequence[float]]  # from a number of runs, their times in microseconds

_REPLAY_US = 500.0  # length of a replay, against which its launch is negligible
_MOST_COPIES = 50


@dataclass(frozen=True)
class Times:
    """Quantiles of repeated timings, in microseconds.

    Attributes:
        p20_us: 20th percentile.
        p50_us: Median.
        p80_us: 80th percentile.
        n: Number of timings.
    """

    p20_us: float
    p50_us: float
    p80_us: float
    n: int

    @classmethod
    def of(cls, times_us: Sequence[float]) -> Times:
        """Return the quantiles of at least one timing, in microseconds."""
        p20_us, p50_us, p80_us = np.quantile(times_us, [0.2, 0.5, 0.8]).tolist()
        return cls(p20_us, p50_us, p80_us, len(times_us))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Times:
        """Restore the quantiles from an object of `to_json`."""
        p20_us, p50_us, p80_us = (float(data[name]) for name in ("p20_us", "p50_us", "p80_us"))
        return cls(p20_us, p50_us, p80_us, int(data["n"]))

    def to_json(self) -> dict[str, float]:
        """Return the quantiles as a JSON object."""
        return asdict(self)


class Timer(Protocol):
    """Timer of calls."""

    @property
    def description(self) -> str:
        """Timing method in words, for results."""
        ...

    def prepare(self, run: Callable[[], object]) -> CallTimer:
        """Return a timer of a call, which is first run a few times so that it is compiled."""
        ...


@dataclass(frozen=True)
class GpuTimer:
    """Timer of work that is launched on the current GPU.

    With a graph, several copies of the work are captured one after the other, so that neither
    Python nor the launch of kernels is timed; a rival has to be timed in the same way.

    Attributes:
        flush_bytes: Bytes written before each run, to evict all else from the second-level cache;
            the time of that alone is subtracted. 0 leaves the cache warm.
        graph: Whether the work is captured in a CUDA graph; if not it is launched from Python.
    """

    flush_bytes: int = 0
    graph: bool = True

    @classmethod
    def cold(cls, gpu: Accelerator) -> GpuTimer:
        """Return a timer that empties the second-level cache of a GPU before each run."""
        return cls(flush_bytes=2 * gpu.l2_bytes)

    @property
    def description(self) -> str:
        """Timing method in words, for results."""
        graph = "CUDA graph" if self.graph else "started from Python"
        return f"{graph}, second-level cache {'cold' if self.flush_bytes else 'warm'}"

    def prepare(self, run: Callable[[], object]) -> CallTimer:
        """Return a timer of a call, which is first run a few times so that it is compiled."""
        if not self.flush_bytes:
            return self._prepared(run)
        scratch = _scratch(self.flush_bytes)

        def flushed() -> None:
            scratch.zero_()
            run()

        both, alone = self._prepared(flushed), self._prepared(scratch.zero_)

        def difference(runs: int) -> list[float]:
            flush_us = float(np.median(alone(runs)))
            # Times within the noise of the flush must not be negative.
            return [max(each_us - flush_us, 0.01) for each_us in both(runs)]

        return difference

    def _prepared(self, run: Callable[[], object]) -> CallTimer:
        side = torch.cuda.Stream()  # a capture requires an earlier run on another stream
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
            once_us = _elapsed_us(run)
        torch.cuda.current_stream().wait_stream(side)
        copies = _copies(once_us)
        if self.graph:
            replay: Callable[[], object] = _captured(run, copies).replay
        else:

            def replay() -> None:
                for _ in range(copies):
                    run()

        replay()
        return lambda runs: [_elapsed_us(replay) / copies for _ in range(runs)]


@dataclass(frozen=True)
class ProcessorTimer:
    """Timer of calls that have finished their work when they return."""

    @property
    def description(self) -> str:
        """Timing method in words, for results."""
        return f"processor, {torch.get_num_threads()} threads, started from Python, caches warm"

    def prepare(self, run: Callable[[], object]) -> CallTimer:
        """Return a timer of a call, which is first run a few times so that it is compiled."""
        run()
        copies = _copies(_took_us(run, 1))

        def timed(runs: int) -> list[float]:
            run()  # other work has filled the caches
            return [_took_us(run, copies) / copies for _ in range(runs)]

        return timed


def done(work: Callable[[], T]) -> T:
    """Return the result of work on a GPU, after waiting for it.

    Errors are raised as they are if the GPU still works after them.

    Raises:
        DeviceError: The GPU is unusable in this process from now on.
    """
    try:
        found = work()
        _wait()
        return found
    except Exception as error:
        try:
            _wait()
        except Exception:
            raise DeviceError(
                f"the GPU is unusable in this process from now on ({error}); start again, earlier "
                "measurements are kept"
            ) from error
        raise


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _copies(once_us: float) -> int:
    """Return how many runs of a call are timed together, given the time of one."""
    return int(min(max(_REPLAY_US / max(once_us, 1.0), 1), _MOST_COPIES))


def _took_us(run: Callable[[], object], copies: int) -> float:
    """Return the time of some runs, one after the other, in microseconds."""
    begin = time.perf_counter()
    for _ in range(copies):
        run()
    return (time.perf_counter() - begin) * 1e6


@lru_cache(maxsize=1)
def _scratch(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _elapsed_us(run: Callable[[], object]) -> float:
    """Return the time between two events on the current stream, in microseconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000


def _captured(run: Callable[[], object], copies: int) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of some runs, one after the other."""
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # a kernel that is unloaded meanwhile would invalidate the capture
    try:
        with torch.cuda.graph(graph):
            for _ in range(copies):
                run()
    finally:
        if collecting:
            gc.enable()
    return graph
