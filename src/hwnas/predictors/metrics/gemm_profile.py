"""Matrix products that were timed on a target, stored beside the target's device profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hwnas.atomic import write_json
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.devices.prediction import Prediction, elsewhere
from hwnas.predictors.devices.store import SCHEMA, DeviceStore, check_device_name, read_description
from hwnas.predictors.metrics.gemm import Gemm, sampled_gemms, steady_ms, time_gemms
from hwnas.predictors.metrics.gemm_model import GemmModel

__all__ = ["GemmProfile", "calibrate_gemms", "load_gemms", "predict_gemm"]

_MAX_MACS = 2**28  # about ten milliseconds of one core


@dataclass(frozen=True)
class GemmProfile:
    """Matrix products that were timed on one target.

    Attributes:
        device: Name of the target.
        gemms: Products that were timed.
        latencies_ms: Latency of each product, in milliseconds.
        hardware: Processor, in words.
        versions: Versions of the packages that matter.
        time: Time of the last measurement, ISO 8601.
    """

    device: str
    gemms: tuple[Gemm, ...]
    latencies_ms: tuple[float, ...]
    hardware: str
    versions: Mapping[str, str]
    time: str

    def model(self) -> GemmModel:
        """Return the cost model that predicts other products."""
        return GemmModel.fit(self.device, self.gemms, self.latencies_ms)


def calibrate_gemms(
    target: Target,
    store: DeviceStore,
    count: int = 120,
    progress: Callable[[float], None] | None = None,
) -> GemmProfile:
    """Time matrix products on a target of this machine and store them, in about a minute.

    Args:
        target: Target on which to time the products.
        store: Store of the products, in which older ones are replaced.
        count: Number of products, at least 20.
        progress: Function that is called with the share that is done, from 0 to 1.

    Raises:
        ConfigError: ``count`` is too small to learn from.
        DeviceError: The target cannot be used here.
    """
    if count < 20:
        raise ConfigError(f"{count} products are too few to learn from; time at least 20")
    gemms = sampled_gemms(count, np.random.default_rng(0), max_macs=_MAX_MACS)
    measured = time_gemms(gemms, target, progress)
    last = measured[-1]
    profile = GemmProfile(
        target.name,
        tuple(gemms),
        tuple(steady_ms([m.latency_ms for m in measured], [m.anchor_ms for m in measured])),
        last.hardware,
        last.versions,
        last.time,
    )
    sizes = [[gemm.m, gemm.n, gemm.k] for gemm in gemms]
    write_json(_path(store, target.name), {"schema": SCHEMA, **vars(profile), "gemms": sizes})
    return profile


def load_gemms(store: DeviceStore, device: str) -> GemmProfile:
    """Read the products that were timed on a device.

    Raises:
        ConfigError: No products were timed on it.
        ArtifactError: The file is damaged, or was written by a newer version of hwnas.
    """
    path = _path(store, device)
    if not path.is_file():
        raise ConfigError(
            f"no matrix products were timed on {device}; `hwnas calibrate --target {device} "
            "--gemm` times some"
        )
    with read_description(path) as found:
        gemms = tuple(Gemm(*sizes) for sizes in found.pop("gemms"))
        return GemmProfile(gemms=gemms, latencies_ms=tuple(found.pop("latencies_ms")), **found)


def predict_gemm(store: DeviceStore, device: str, gemm: Gemm) -> Prediction:
    """Predict the latency of one product on a target on which products were timed."""
    profile = load_gemms(store, device)
    [estimate] = profile.model().predict([gemm])
    return Prediction(estimate, len(profile.gemms), tuple(elsewhere(device, profile.hardware)))


def _path(store: DeviceStore, device: str) -> Path:
    check_device_name(device)
    return store.folder / device / "gemm.json"
