"""Calibration of a target by matrix products: latency, and power where energy is counted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hwnas.deploy.measurement.energy import energy_counter, energy_of
from hwnas.deploy.measurement.timing import prepared_run
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.targets.machine import processor_of, versions
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError, DeviceError, EnergyUnavailable
from hwnas.predictors.devices.store import DeviceStore
from hwnas.predictors.metrics.gemm import Gemm, sampled_gemms, steady_ms, time_gemms, write_gemm
from hwnas.predictors.metrics.gemm_bench import GpuTileBench, TileBench
from hwnas.predictors.metrics.gemm_model import LEAST
from hwnas.predictors.metrics.gemm_profile import GemmProfile, save_gemms
from hwnas.predictors.metrics.gemm_tiles import sampled_tiles

__all__ = ["calibrate_gemms", "time_tiles"]

_MAX_MACS = 2**28  # about ten milliseconds of one core
_MAX_TILED_MACS = 2**34  # about a tenth of a millisecond of a large GPU
_TILES = 8  # of each product
_POWER_S = 0.2

Progress = Callable[[float], None]


def calibrate_gemms(
    target: Target, store: DeviceStore, count: int = 120, progress: Progress | None = None
) -> GemmProfile:
    """Time matrix products on a target of this machine, and store them.

    The power is measured, too, if this machine has an energy counter. On a target of the runtime
    ``triton``, each product is timed in several tiles.

    Args:
        target: Target on which to time the products.
        store: Store of the products, in which older ones are replaced.
        count: Number of products, at least 20.
        progress: Function that is called with the share that is done, from 0 to 1.

    Raises:
        ConfigError: ``count`` is too small to learn from, or tiles are not timed in this format.
        DeviceError: The target cannot be used here.
    """
    if count < LEAST:
        raise ConfigError(f"{count} products are too few to learn from; time at least {LEAST}")
    if target.device.runtime == "triton":
        check_usable(RUNTIMES["triton"], target)
        profile = time_tiles(target, GpuTileBench(target), count, progress)
    else:
        profile = _timed(target, count, progress)
    save_gemms(store, profile)
    return profile


def time_tiles(
    target: Target, bench: TileBench, count: int, progress: Progress | None = None
) -> GemmProfile:
    """Time products in several tiles each, on a GPU or something that stands for one.

    Args:
        target: Target of the runtime ``triton``.
        bench: Bench on which they are timed.
        count: Number of products.
        progress: Function that is called with the share that is done, from 0 to 1.

    Raises:
        DeviceError: The bench can compute hardly any product.
    """
    rng = np.random.default_rng(0)
    gemms = sampled_gemms(count, rng, max_macs=_MAX_TILED_MACS)
    planned = sampled_tiles(gemms, bench.site, _TILES, rng)
    read = []
    for place, product in enumerate(planned):
        reading = bench.measure(product)
        if reading is not None:
            read.append((product, reading))
        if progress is not None:
            progress((place + 1) / len(planned))
    if len(read) < LEAST:
        raise DeviceError(
            f"only {len(read)} of {len(planned)} products could be computed in their tiles; check "
            "the installation with `hwnas kernels suite pointwise`"
        )
    return GemmProfile(
        target.name,
        tuple(product.gemm for product, _ in read),
        tuple(reading.latency_ms for _, reading in read),
        processor_of(target.device.hardware),
        versions(RUNTIMES["triton"].packages),
        datetime.now(UTC).isoformat(timespec="seconds"),
        tuple(reading.power_w for _, reading in read) if bench.counter else (),
        bench.counter,
        tuple(product.tile for product, _ in read),
        bench.site,
    )


def _timed(target: Target, count: int, progress: Progress | None) -> GemmProfile:
    """Time products by the target's runtime, which chooses tiles itself."""
    gemms = sampled_gemms(count, np.random.default_rng(0), max_macs=_MAX_MACS)
    measured = time_gemms(gemms, target, progress)
    last = measured[-1]
    powers, counter = _powers(gemms, target)
    return GemmProfile(
        target.name,
        tuple(gemms),
        tuple(steady_ms([m.latency_ms for m in measured], [m.anchor_ms for m in measured])),
        last.hardware,
        last.versions,
        last.time,
        powers,
        counter,
    )


def _powers(gemms: Sequence[Gemm], target: Target) -> tuple[tuple[float | None, ...], str]:
    """Return the power of each product in watts and the counter's name; both empty without one."""
    try:
        counter = energy_counter(target.device.hardware)
    except EnergyUnavailable:
        return (), ""
    found: list[float | None] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "gemm.onnx")
        for gemm in gemms:
            write_gemm(gemm, model)
            try:
                run = prepared_run(model, target)
                found.append(energy_of(run, counter, _POWER_S).power_w)
            except EnergyUnavailable:  # the counter did not advance
                found.append(None)
    return tuple(found), counter.name
