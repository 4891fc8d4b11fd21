"""Networks whose peak memory was measured on a target, stored beside their latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.atomic import write_json
from hwnas.deploy.measurement.memory import peak_memory
from hwnas.deploy.targets.machine import processor_of
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.devices.calibration import (
    CalibrationOptions,
    NetworkMeasurement,
    check_same_hardware,
    count_known,
    drawn_networks,
    exported_for_a_while,
)
from hwnas.predictors.devices.prediction import Prediction, elsewhere
from hwnas.predictors.devices.selection import most_informative
from hwnas.predictors.devices.store import SCHEMA, DeviceStore, check_device_name, read_description
from hwnas.predictors.features.blocks import BlockScaling
from hwnas.predictors.metrics.memory import METRIC, MemoryPredictor, memory_features
from hwnas.predictors.models.gaussian_process import Numbers, Parts
from hwnas.search_spaces import Architecture, SearchSpace, Workload

__all__ = [
    "MemoryProfile",
    "calibrate_memory",
    "has_memory",
    "load_memory",
    "predict_memory",
    "remove_memory",
    "save_memory",
]

_POOL = 60
_PROCESSES = 2  # for each network
_VARIANCES = np.array([1.0, 0.01])  # of the linear part of the kernel, and of the noise


@dataclass(frozen=True)
class MemoryProfile:
    """Networks whose peak memory was measured on one target.

    Attributes:
        device: Name of the target.
        networks: Ids of the networks, n of them.
        features: Three features of each network, from `memory_features`: peaks follow from graphs,
            not from operator counts.
        peaks_bytes: Peak memory of each network, in bytes.
        space: Spaces of the networks, in words.
        hardware: Processor, in words.
        versions: Versions of the packages that matter.
        time: Time of the last measurement, ISO 8601.
    """

    device: str
    networks: tuple[str, ...] = ()
    features: tuple[tuple[float, ...], ...] = ()
    peaks_bytes: tuple[int, ...] = ()
    space: str = ""
    hardware: str = ""
    versions: dict[str, str] | None = None
    time: str = ""

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return METRIC

    @property
    def reference_ms(self) -> None:
        """None, since nothing was timed."""
        return None

    @property
    def contended(self) -> int:
        """Number of disturbed timings: zero, since nothing was timed."""
        return 0

    @property
    def held_out_error(self) -> None:
        """None, since it is not computed."""
        return None

    def description(self) -> dict[str, Any]:
        """Return all fields and the metric as a JSON object."""
        return {"schema": SCHEMA, "metric": METRIC, **self.to_json()}

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryProfile:
        """Return the profile of a JSON object, as the inverse of `to_json`.

        Raises:
            ValueError: The fields do not fit together.
        """
        features = tuple(tuple(map(float, row)) for row in data["features"])
        networks, peaks = tuple(data["networks"]), tuple(map(int, data["peaks_bytes"]))
        if not len(features) == len(networks) == len(peaks):
            raise ValueError(
                f"{len(networks)} networks, {len(features)} rows of features and {len(peaks)} "
                "peaks; expected equal numbers"
            )
        return cls(**{**data, "networks": networks, "features": features, "peaks_bytes": peaks})

    def predictor(self) -> MemoryPredictor:
        """Return the predictor of the peak memory of other networks."""
        return MemoryPredictor(
            Target.parse(self.device), np.array(self.features), tuple(map(float, self.peaks_bytes))
        )


def calibrate_memory(
    target: Target,
    space: SearchSpace,
    store: DeviceStore,
    options: CalibrationOptions | None = None,
) -> MemoryProfile:
    """Measure the peak memory of networks on a target, each in fresh processes.

    Networks of the space that the store already has of the target count, and every network is
    stored as soon as it was measured. Each takes about 10 seconds.

    Args:
        target: Target of ONNX Runtime.
        space: Space of the networks.
        store: Store of the profile.
        options: Extent of the calibration; the defaults if None. Networks are chosen at once,
            without predictions, so ``block`` is not used and ``until_error`` must be None.

    Raises:
        ConfigError: ``until_error`` is given, or the target has another runtime.
        DeviceError: The target cannot be used, its system does not report memory, or the store
            knows the target from other hardware.
    """
    options = options or CalibrationOptions()
    if options.until_error is not None:
        raise ConfigError(
            f"until_error is {options.until_error:g}, but the error of {METRIC} is not known while "
            "networks are measured; leave it out"
        )
    MemoryPredictor(target)  # refuses other runtimes
    profile = MemoryProfile(target.name)
    if has_memory(store, target.name):
        profile = load_memory(store, target.name)
        check_same_hardware(store, target, profile.hardware)
    pool = drawn_networks(space, 0, _POOL)
    features = memory_features(
        [space.workload(network, target.device.batch) for network in pool], target.format
    )
    wanted = max(options.samples - count_known(pool, profile.networks), 0)
    for done, index in enumerate(_chosen(pool, features, profile.networks, wanted), start=1):
        network = pool[index]
        with exported_for_a_while([network], space, options.export) as [model]:
            measured = peak_memory(model, target, _PROCESSES)
        profile = MemoryProfile(
            target.name,
            (*profile.networks, network.id),
            (*profile.features, tuple(features[index].tolist())),
            (*profile.peaks_bytes, measured.peak_bytes),
            ", ".join(dict.fromkeys([*filter(None, profile.space.split(", ")), space.fingerprint])),
            processor_of(target.device.hardware),
            dict(measured.versions),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        save_memory(store, profile)
        number = len(profile.networks)
        peak = float(measured.peak_bytes)
        options.on_reading(NetworkMeasurement(network.id, None, peak, number, None))
        options.advance(done / wanted, f"{network.id} takes {peak / 1e6:.4g} MB")
    return profile


def _chosen(
    pool: Sequence[Architecture], features: Numbers, known: tuple[str, ...], count: int
) -> list[int]:
    parts = Parts({"memory": BlockScaling.over(features)(features)}, {})
    measured = [i for i, network in enumerate(pool) if network.id in known]
    return most_informative(parts, _VARIANCES, count, measured)


def has_memory(store: DeviceStore, device: str) -> bool:
    """Return whether peak memory was measured on a target."""
    return _path(store, device).is_file()


def load_memory(store: DeviceStore, device: str) -> MemoryProfile:
    """Read the peak memory that was measured on a target.

    Raises:
        ConfigError: No peak memory was measured on it.
        ArtifactError: The file is damaged, or was written by a newer version of hwnas.
    """
    path = _path(store, device)
    if not path.is_file():
        raise ConfigError(
            f"no peak memory was measured on {device}; `hwnas calibrate --target {device} "
            f"--metric {METRIC}` measures some"
        )
    with read_description(path) as found:
        return MemoryProfile.from_json(found)


def save_memory(store: DeviceStore, profile: MemoryProfile) -> None:
    """Write a profile; an existing one of the same target is replaced."""
    write_json(_path(store, profile.device), {"schema": SCHEMA, **profile.to_json()})


def remove_memory(store: DeviceStore, device: str) -> None:
    """Remove the profile of a target, if there is one."""
    _path(store, device).unlink(missing_ok=True)


def predict_memory(
    store: DeviceStore, device: str, at_batch: Callable[[int], Workload]
) -> Prediction:
    """Predict the peak memory of one network on a target on which some was measured.

    Args:
        store: Store of the measurements.
        device: Name of the target.
        at_batch: Function that returns the network at a given batch size.
    """
    profile = load_memory(store, device)
    predictor = profile.predictor()
    target = predictor.target
    [estimate] = predictor.cost([at_batch(target.device.batch)], [target])
    return Prediction(estimate, len(profile.networks), tuple(elsewhere(device, profile.hardware)))


def _path(store: DeviceStore, device: str) -> Path:
    check_device_name(device)
    return store.folder / device / f"{METRIC}.json"
