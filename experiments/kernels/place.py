"""Place where the experiment runs: the GPU of this machine, or a simulation without timing."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from hwnas.errors import DeviceError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.compile_ahead import Compiled
from hwnas.kernels.launch import cannot_run
from hwnas.kernels.operator import Config
from hwnas.kernels.resources import Resources
from hwnas.kernels.suite.gpu_bench import GpuBench
from hwnas.kernels.suite.timer import CallTimer, GpuTimer

__all__ = ["CACHES", "Place"]

CACHES = ("cold", "warm")
"""States of the second-level cache: flushed before each run of both sides, or of neither."""
_SIMULATED = replace(Accelerator.named("nvidia-h200"), name="simulated")


@dataclass(frozen=True)
class Place:
    """GPU, or a simulated one.

    Attributes:
        gpu: The GPU.
        simulated: Whether kernels are interpreted and times are invented.
        work: Folder for temporary files.
        workers: Number of parallel processes, where nothing is timed or one process at a time is.
        start: Start method of `multiprocessing`.
    """

    gpu: Accelerator
    simulated: bool
    work: Path
    workers: int
    start: Literal["forkserver", "spawn"] = "forkserver"

    @classmethod
    def here(cls, simulated: bool) -> Place:
        """Return the GPU of this machine, or a simulated one that needs none.

        Raises:
            DeviceError: There is no GPU, and it is not simulated.
        """
        if simulated:
            return cls(_SIMULATED, True, Path(tempfile.mkdtemp()), 2)
        gpu = Accelerator.here()
        if reason := cannot_run(torch.device("cuda")):
            raise DeviceError(reason)
        cores = len(os.sched_getaffinity(0))
        return cls(gpu, False, Path(tempfile.mkdtemp()), max(1, cores - 2))

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return torch.device("cpu" if self.simulated else "cuda")

    @property
    def longest_tuning(self) -> float:
        """Seconds of tuning for one case, beyond which little is found."""
        return 0.5 if self.simulated else 30.0

    def timer(self, cache: str) -> GpuTimer:
        """Return the timer for a state of the cache, one of `CACHES`."""
        if self.simulated:
            return _SimulatedTimer(flush_bytes=int(cache == "cold"))
        return GpuTimer.cold(self.gpu) if cache == "cold" else GpuTimer()

    def timer_in_turn(self) -> GpuTimer:
        """Return a timer that processes can share: while one of them times, the others wait."""
        cold = self.timer("cold")
        return cold if self.simulated else _TimerInTurn(cold.flush_bytes, folder=self.work)

    @property
    def bench(self) -> type[GpuBench]:
        """Class that tries configurations."""
        return _SimulatedBench if self.simulated else GpuBench

    def touch(self, _: None = None) -> dict[str, int]:
        """Compute a sum on the device, to check that a process can use it."""
        return {"sum": int(torch.ones(2, device=self.device).sum().item())}

    @staticmethod
    def wait() -> None:
        """Wait until the GPU has finished all work."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()


@dataclass(frozen=True)
class _TimerInTurn(GpuTimer):
    folder: Path = Path()

    def prepare(self, run: Callable[[], object]) -> CallTimer:
        with self._alone():
            timed = super().prepare(run)

        def alone(runs: int) -> Sequence[float]:
            with self._alone():
                return timed(runs)

        return alone

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
            torch.cuda.synchronize()
        finally:
            os.close(handle)


_moments = itertools.count(1)


class _SimulatedTimer(GpuTimer):
    """Timer that runs a call once, and then invents times."""

    @property
    def description(self) -> str:
        return f"simulated, {super().description}"

    def prepare(self, run: Callable[[], object]) -> CallTimer:
        run()
        base = 10.0 + next(_moments) % 7
        return lambda runs: [base + i % 3 for i in range(runs)]


class _SimulatedBench(GpuBench):
    """Bench that does not compile, since a process that interprets cannot."""

    def __init__(self, *arguments: object) -> None:
        operator, sizes, dtype, gpu, timer, _, *seed = arguments
        super().__init__(operator, sizes, dtype, gpu, timer, torch.device("cpu"), *seed)  # type: ignore[arg-type]

    def compile(self, configs: Sequence[Config]) -> list[Compiled]:
        return [(Resources(32, 0, 0, 4),) for _ in configs]
