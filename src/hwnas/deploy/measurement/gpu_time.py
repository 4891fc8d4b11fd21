"""GPU time used by processes, as reported by NVML."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

__all__ = ["GpuClock"]


class GpuClock:
    """Busy time of NVIDIA GPUs while given processes had them open, in seconds.

    NVML reports which processes compute on a GPU, and for which share of the last moment the GPU
    was busy. It does not divide that share among processes: if another program computes on the same
    GPU at the same time, its work counts, too. Nothing is counted without NVML, or if NVML sees
    other process ids than this system (as in most containers).
    """

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._nvml, self._gpus = _opened()

    @property
    def seconds(self) -> float | None:
        """Busy time summed over all GPUs; None if no process was ever seen on a GPU."""
        return self._seconds

    def sample(self, processes: Collection[int], seconds: float) -> None:
        """Add the current utilisation of the GPUs to the busy time.

        Args:
            processes: Ids of the processes whose GPU time is counted.
            seconds: Time since the last sample, for which this sample stands.
        """
        for gpu in list(self._gpus):
            try:
                users = {each.pid for each in self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
                if users.isdisjoint(processes):
                    continue
                busy = self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
            except self._nvml.NVMLError:  # after an error, this GPU is not sampled again
                self._gpus.remove(gpu)
                continue
            self._seconds = (self._seconds or 0.0) + busy * seconds


def _opened() -> tuple[Any, list[Any]]:
    """Return NVML and its handles of all GPUs; no handles if NVML is not available."""
    try:
        import pynvml
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except pynvml.NVMLError:
        return pynvml, []
