"""How long GPUs computed for some processes, from what NVML tells."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

__all__ = ["GpuClock"]


class GpuClock:
    """Busy time of NVIDIA GPUs while some processes had them open, in seconds.

    NVML tells which processes compute on a GPU and for which share of the last moment it was busy.
    It does not divide that share: where another program computes on the same GPU at the same time,
    its work counts, too. Without NVML, or where it sees other process numbers than this system
    (most containers), nothing is counted.
    """

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._nvml, self._gpus = _opened()

    @property
    def seconds(self) -> float | None:
        """Summed over all GPUs; None where none of the processes was ever seen on one."""
        return self._seconds

    def sample(self, processes: Collection[int], seconds: float) -> None:
        """Take in how busy the GPUs are.

        Args:
            processes: Numbers of the processes whose time this is.
            seconds: Time since the last sample, for which this one stands.
        """
        if not self._gpus:
            return
        try:
            for gpu in self._gpus:
                users = {each.pid for each in self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
                if users.isdisjoint(processes):
                    continue
                busy = self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
                self._seconds = (self._seconds or 0.0) + busy * seconds
        except self._nvml.NVMLError:  # a GPU that tells nothing is not asked again
            self._gpus = []


def _opened() -> tuple[Any, list[Any]]:
    """NVML and its handles of all GPUs; none where it is not there."""
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
