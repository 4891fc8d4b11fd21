"""Networks whose peak memory was measured on a target, kept beside their latencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hwnas.atomic import write_json
from hwnas.deploy.catalogue import machine, versions
from hwnas.deploy.device import Target
from hwnas.deploy.memory import peak_memory
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.errors import ConfigError
from hwnas.predictors.blocks import Scale
from hwnas.predictors.calibration import (
    check_same_hardware,
    drawn_networks,
    exported_for_a_while,
)
from hwnas.predictors.gaussian_process import Numbers, Parts
from hwnas.predictors.memory import (
    METRIC,
    MINIMUM_MEASUREMENTS,
    MemoryPredictor,
    memory_features,
)
from hwnas.predictors.prediction import Prediction, elsewhere
from hwnas.predictors.selection import most_informative
from hwnas.predictors.store import SCHEMA, DeviceStore, check_device_name, read_description
from hwnas.search_spaces import Architecture, SearchSpace, Workload

__all__ = ["MemoryProfile", "calibrate_memory", "has_memory", "load_memory", "predict_memory"]

_POOL = 60
_PROCESSES = 2  # for each network
_VARIANCES = np.array([1.0, 0.01])  # of what is linear in the features, and of noise


@dataclass(frozen=True)
class MemoryProfile:
    """Networks that were measured on one target.

    Attributes:
        device: Name of the target.
        networks: Ids of the networks, n of them.
        features: Three of each, as `memory_features` gives them: peaks follow from graphs, not
            from steps.
        peaks_bytes: What each took.
        space: Where the networks are from, in words.
        hardware: Processor, in words.
        versions: Of the packages that matter.
        time: Of the last measurement, ISO 8601.
    """

    device: str
    networks: tuple[str, ...] = ()
    features: tuple[tuple[float, ...], ...] = ()
    peaks_bytes: tuple[int, ...] = ()
    space: str = ""
    hardware: str = ""
    versions: dict[str, str] | None = None
    time: str = ""

    def predictor(self) -> MemoryPredictor:
        """What follows for other networks."""
        return MemoryPredictor(
            Target.parse(self.device), np.array(self.features), tuple(map(float, self.peaks_bytes))
        )


def calibrate_memory(
    target: Target,
    space: SearchSpace,
    store: DeviceStore,
    samples: int = 10,
    on_reading: Callable[[str, int, int], None] = lambda network, peak_bytes, number: None,
) -> MemoryProfile:
    """Measure the peak memory of networks on a target of this machine, each in fresh processes.

    What the store has of the target already counts, and every network is kept as soon as it was
    measured; each takes about 10 seconds.

    Args:
        target: Of ONNX Runtime.
        space: Where the networks are from.
        store: Where they are kept.
        samples: So many networks shall be known of the target, at least 3.
        on_reading: Called with the id of each network, its peak in bytes and how many are known.

    Raises:
        ConfigError: ``samples`` cannot be, or the target is of another runtime.
        DeviceError: The target cannot be used here, the system does not tell memory, or the store
            knows the target from other hardware.
    """
    if samples < MINIMUM_MEASUREMENTS:
        raise ConfigError(f"samples is {samples}; expected at least {MINIMUM_MEASUREMENTS}")
    MemoryPredictor(target)  # refuses other runtimes
    profile = MemoryProfile(target.name)
    if has_memory(store, target.name):
        profile = load_memory(store, target.name)
        check_same_hardware(store, target, profile.hardware)
    pool = drawn_networks(space, 0, _POOL)
    features = memory_features(
        [space.workload(network, target.device.batch) for network in pool], target.format
    )
    wanted = max(samples - len(profile.networks), 0)
    for index in _chosen(pool, features, profile.networks, wanted):
        network = pool[index]
        peak_bytes = _measured(space, network, target)
        profile = MemoryProfile(
            target.name,
            (*profile.networks, network.id),
            (*profile.features, tuple(features[index].tolist())),
            (*profile.peaks_bytes, peak_bytes),
            ", ".join(dict.fromkeys([*filter(None, profile.space.split(", ")), space.fingerprint])),
            machine()["processor"],
            dict(versions(RUNTIMES[target.device.runtime].packages)),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_json(_path(store, target.name), {"schema": SCHEMA, **asdict(profile)})
        on_reading(network.id, peak_bytes, len(profile.networks))
    return profile


def _chosen(
    pool: Sequence[Architecture], features: Numbers, known: tuple[str, ...], count: int
) -> list[int]:
    parts = Parts({"memory": Scale.over(features)(features)}, {})
    measured = [i for i, network in enumerate(pool) if network.id in known]
    return most_informative(parts, _VARIANCES, count, measured)


def _measured(space: SearchSpace, network: Architecture, target: Target) -> int:
    with exported_for_a_while([network], space) as [model]:
        return peak_memory(model, target, _PROCESSES).peak_bytes


def has_memory(store: DeviceStore, device: str) -> bool:
    """Whether peak memory was measured on a target."""
    return _path(store, device).is_file()


def load_memory(store: DeviceStore, device: str) -> MemoryProfile:
    """Read what was measured.

    Raises:
        ConfigError: Nothing was.
        ArtifactError: The file is damaged, or was written by a newer version of hwnas.
    """
    path = _path(store, device)
    if not path.is_file():
        raise ConfigError(
            f"no peak memory was measured on {device}; `hwnas calibrate --target {device} "
            "--memory` measures some"
        )
    with read_description(path) as found:
        features = tuple(tuple(map(float, row)) for row in found.pop("features"))
        networks, peaks = tuple(found.pop("networks")), tuple(map(int, found.pop("peaks_bytes")))
        if not len(features) == len(networks) == len(peaks):
            raise ValueError(f"{len(networks)} networks, {len(features)} rows, {len(peaks)} peaks")
        return MemoryProfile(networks=networks, features=features, peaks_bytes=peaks, **found)


def predict_memory(
    store: DeviceStore, device: str, at_batch: Callable[[int], Workload]
) -> Prediction:
    """Peak memory of one network on a target where some was measured.

    Args:
        store: Where it is kept.
        device: Name of the target.
        at_batch: The network, at a batch that it is called with.
    """
    profile = load_memory(store, device)
    predictor = profile.predictor()
    target = predictor.target
    [estimate] = predictor.cost([at_batch(target.device.batch)], [target])
    return Prediction(estimate, len(profile.networks), tuple(elsewhere(device, profile.hardware)))


def _path(store: DeviceStore, device: str) -> Path:
    check_device_name(device)
    return store.folder / device / f"{METRIC}.json"
