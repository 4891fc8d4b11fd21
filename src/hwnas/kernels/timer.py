"""How long work takes, on a card or on the processor.

On a card CUDA events stand around CUDA graphs; the cache is cold or warm, and that is said.
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

__all__ = ["CardTimer", "ProcessorTimer", "Stopwatch", "Timer", "Times", "done"]

T = TypeVar("T")

Stopwatch = Callable[[int], Sequence[float]]  # so many times of one thing, in microseconds

_REPLAY_US = 500.0  # of one replay, beside which its start does not count
_MOST_COPIES = 50


@dataclass(frozen=True)
class Times:
    """Quantiles of repeated timings, in microseconds.

    Attributes:
        p20_us: A fifth of the timings were shorter.
        p50_us: The median.
        p80_us: A fifth of the timings were longer.
        n: How many timings.
    """

    p20_us: float
    p50_us: float
    p80_us: float
    n: int

    @classmethod
    def of(cls, times_us: Sequence[float]) -> Times:
        """Of at least one timing in microseconds."""
        p20_us, p50_us, p80_us = np.quantile(times_us, [0.2, 0.5, 0.8]).tolist()
        return cls(p20_us, p50_us, p80_us, len(times_us))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Times:
        """The inverse of `to_json`."""
        p20_us, p50_us, p80_us = (float(data[name]) for name in ("p20_us", "p50_us", "p80_us"))
        return cls(p20_us, p50_us, p80_us, int(data["n"]))

    def to_json(self) -> dict[str, float]:
        """A JSON object."""
        return asdict(self)


class Timer(Protocol):
    """A way to time things."""

    @property
    def description(self) -> str:
        """In words, for results."""
        ...

    def stopwatch(self, run: Callable[[], object]) -> Stopwatch:
        """Make something ready to be timed; it is run a few times, in which it is compiled."""
        ...


@dataclass(frozen=True)
class CardTimer:
    """Times what is started on the current card.

    With a graph, several copies of the work are captured one after the other, so that neither
    Python nor the start of kernels is timed; a rival has to be given the same.

    Attributes:
        flush_bytes: Written before each run, to drive all else out of the second-level cache; the
            time of that alone is subtracted. 0 leaves the cache warm.
        graph: Whether the work is captured in a CUDA graph; if not it is started from Python.
    """

    flush_bytes: int = 0
    graph: bool = True

    @classmethod
    def cold(cls, card: Accelerator) -> CardTimer:
        """One that finds nothing in the cache of a card."""
        return cls(flush_bytes=2 * card.l2_bytes)

    @property
    def description(self) -> str:
        """In words, for results."""
        graph = "CUDA graph" if self.graph else "started from Python"
        return f"{graph}, second-level cache {'cold' if self.flush_bytes else 'warm'}"

    def stopwatch(self, run: Callable[[], object]) -> Stopwatch:
        """Make something ready to be timed; it is run a few times, in which it is compiled."""
        if not self.flush_bytes:
            return self._stopwatch(run)
        scratch = _scratch(self.flush_bytes)

        def flushed() -> None:
            scratch.zero_()
            run()

        both, alone = self._stopwatch(flushed), self._stopwatch(scratch.zero_)

        def difference(runs: int) -> list[float]:
            flush_us = float(np.median(alone(runs)))
            # What lies within the noise of the flush is not below nothing.
            return [max(each_us - flush_us, 0.01) for each_us in both(runs)]

        return difference

    def _stopwatch(self, run: Callable[[], object]) -> Stopwatch:
        side = torch.cuda.Stream()  # a capture needs that it has run on another stream before
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
    """Times what is done when it returns."""

    @property
    def description(self) -> str:
        """In words, for results."""
        return f"processor, {torch.get_num_threads()} threads, started from Python, caches warm"

    def stopwatch(self, run: Callable[[], object]) -> Stopwatch:
        """Make something ready to be timed; it is run a few times, in which it is compiled."""
        run()
        copies = _copies(_took_us(run, 1))

        def timed(runs: int) -> list[float]:
            run()  # something else had the caches
            return [_took_us(run, copies) / copies for _ in range(runs)]

        return timed


def done(work: Callable[[], T]) -> T:
    """Wait for work; an error after which the card does nothing more is told from others.

    Raises:
        DeviceError: It is such a one.
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
                f"the card does nothing more in this process ({error}); start again, what was "
                "measured is kept"
            ) from error
        raise


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _copies(once_us: float) -> int:
    """How many runs are timed as one, of something that takes so long."""
    return int(min(max(_REPLAY_US / max(once_us, 1.0), 1), _MOST_COPIES))


def _took_us(run: Callable[[], object], copies: int) -> float:
    """The time that some runs take, one after the other."""
    begin = time.perf_counter()
    for _ in range(copies):
        run()
    return (time.perf_counter() - begin) * 1e6


@lru_cache(maxsize=1)
def _scratch(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _elapsed_us(run: Callable[[], object]) -> float:
    """The time between two events on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000


def _captured(run: Callable[[], object], copies: int) -> torch.cuda.CUDAGraph:
    """A graph of some runs, one after the other."""
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # a kernel that is unloaded meanwhile would spoil the capture
    try:
        with torch.cuda.graph(graph):
            for _ in range(copies):
                run()
    finally:
        if collecting:
            gc.enable()
    return graph
