"""Bench that times matrix products in given tiles on the GPU of this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hwnas.deploy.measurement.energy import EnergyCounter, energy_counter, energy_of
from hwnas.deploy.targets.target import Target
from hwnas.errors import DeviceError, EnergyUnavailable
from hwnas.predictors.metrics.gemm import Gemm
from hwnas.predictors.metrics.gemm_tiles import TiledGemm, TileSite

if TYPE_CHECKING:
    from hwnas.kernels.suite.gpu_bench import GpuBench

__all__ = ["GpuTileBench", "TileBench", "TileReading"]

_RUNS = 20
_POWER_S = 0.5  # GPUs update their energy counter some ten times a second


@dataclass(frozen=True)
class TileReading:
    """Measurement of a product in a tile.

    Attributes:
        latency_ms: Median latency in milliseconds.
        power_w: Mean power in watts while the product ran again and again; None if nothing counts
            the energy.
    """

    latency_ms: float
    power_w: float | None


class TileBench(Protocol):
    """Bench on which products are timed: a GPU, or something that stands for one."""

    @property
    def site(self) -> TileSite:
        """GPU, number format and batch size."""

    @property
    def counter(self) -> str:
        """Name of the energy counter; empty if there is none."""

    def measure(self, product: TiledGemm) -> TileReading | None:
        """Return the measurement of a product, or None if it cannot be computed in its tile."""


class GpuTileBench:
    """Bench of products on the first GPU of this machine, by the operator ``pointwise``.

    Products are captured in CUDA graphs and run with a warm cache. Results are compared with those
    of PyTorch before they are timed.

    Args:
        target: Target of the runtime ``triton``; its format and batch size are used.

    Raises:
        ConfigError: The target's format is not in floating point.
        DeviceError: There is no GPU.
    """

    def __init__(self, target: Target) -> None:
        from hwnas.kernels.accelerator import Accelerator

        self._target, self._accelerator = target, Accelerator.here(0)
        self._site = TileSite.of(self._accelerator, target)
        self._counter: EnergyCounter | None
        try:
            self._counter = energy_counter(target.device.hardware)
        except EnergyUnavailable:
            self._counter = None
        self._of: tuple[Gemm, GpuBench] | None = None

    @property
    def site(self) -> TileSite:
        """See `TileBench.site`."""
        return self._site

    @property
    def counter(self) -> str:
        """See `TileBench.counter`."""
        return "" if self._counter is None else self._counter.name

    def measure(self, product: TiledGemm) -> TileReading | None:
        """See `TileBench.measure`.

        Raises:
            DeviceError: The GPU is unusable from now on.
        """
        bench, config = self._bench(product.gemm), product.tile.config
        try:
            if bench.error(config) > 1:
                return None
            latency_ms = float(np.median(bench.times_us(config, _RUNS))) / 1e3
        except DeviceError:
            raise
        except Exception:  # Triton's errors of tiles that cannot be compiled share no other base
            return None
        return TileReading(latency_ms, self._power_w(lambda: bench.times_us(config, _RUNS)))

    def _power_w(self, run: Callable[[], object]) -> float | None:
        if self._counter is None:
            return None
        try:
            return energy_of(run, self._counter, _POWER_S).power_w
        except EnergyUnavailable:  # the counter did not advance
            return None

    def _bench(self, gemm: Gemm) -> GpuBench:
        """Return the bench of a product; the last one is kept, as its tiles follow each other."""
        import torch

        from hwnas.deploy.runtimes.triton import torch_type
        from hwnas.kernels.operators.pointwise import pointwise
        from hwnas.kernels.suite.gpu_bench import GpuBench
        from hwnas.kernels.suite.timer import GpuTimer

        if self._of is None or self._of[0] != gemm:
            sizes = {"images": self._target.device.batch, "pixels": gemm.m, "inputs": gemm.k}
            sizes |= {"outputs": gemm.n, "gate": 0, "residual": 0}
            place, dtype = torch.device("cuda", 0), torch_type(self._target)
            made = GpuBench(pointwise, sizes, dtype, self._accelerator, GpuTimer(), place)
            self._of = gemm, made
        return self._of[1]
