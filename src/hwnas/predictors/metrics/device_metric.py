"""Metrics that depend on the device: how each is measured, calibrated and predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from hwnas.deploy.measurement.energy import measured_energy
from hwnas.deploy.measurement.exit_paths import exit_paths
from hwnas.deploy.measurement.measured_cost import MeasuredCost
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.memory import peak_memory
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.devices.calibration import CalibrationOptions, MeasuredMetric, calibrate
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.store import DeviceProfile, DeviceStore
from hwnas.predictors.estimate import CostSource, Estimate
from hwnas.predictors.metrics.memory import METRIC, MemoryPredictor
from hwnas.predictors.metrics.memory_profile import (
    MemoryProfile,
    calibrate_memory,
    has_memory,
    load_memory,
    remove_memory,
    save_memory,
)
from hwnas.registry import Plugin, Registry
from hwnas.search_spaces import SearchSpace

__all__ = ["DEVICE_METRICS", "CalibratedPredictor", "DeviceMetric", "Profile", "latency_cost"]


class Profile(Protocol):
    """Networks whose cost in one metric is known on a device."""

    @property
    def device(self) -> str:
        """Name of the target, or of a custom device."""
        ...

    @property
    def metric(self) -> str:
        """Name of the metric."""
        ...

    @property
    def networks(self) -> tuple[str, ...]:
        """Ids of the networks."""
        ...

    @property
    def hardware(self) -> str:
        """Processor or accelerator, in words; empty for costs from a table."""
        ...

    @property
    def versions(self) -> Mapping[str, str] | None:
        """Versions of the packages that matter; none for costs from a table."""
        ...

    @property
    def time(self) -> str:
        """Time of the last measurement, ISO 8601."""
        ...

    @property
    def reference_ms(self) -> float | None:
        """Median time of the reference model beside the last timings; None if nothing was timed."""
        ...

    @property
    def contended(self) -> int:
        """Number of networks whose timing was disturbed by other work on the machine."""
        ...

    @property
    def held_out_error(self) -> float | None:
        """Median error of predicting each network from the others, as a fraction, if known."""
        ...

    def description(self) -> dict[str, Any]:
        """Return all fields that are read by people, as a JSON object."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        ...


class CalibratedPredictor(CostSource, Protocol):
    """Predictor of one metric on one device, fitted to the measurements of a profile."""

    def held_out(self) -> list[Estimate]:
        """Predict each measured network by a predictor that has not seen it."""


class DeviceMetric(ABC):
    """Metric that depends on the device; less is better.

    Attributes:
        name: Name in recipes; it ends with the unit.
        unit: Unit of the values.
        noun: What is measured, in words.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    noun: ClassVar[str]

    @property
    def pick(self) -> str:
        """Name of the finalist with the lowest value, as in ``hwnas export --pick``."""
        return "lowest-" + self.noun.replace(" ", "-")

    def check(self, target: Target) -> None:  # noqa: B027 - most metrics accept every target
        """Raise if the metric is not defined for a target, wherever it is measured.

        Raises:
            ConfigError: It is not.
        """

    @abstractmethod
    def measure(self, models: Mapping[str, Path], target: Target) -> dict[str, MeasuredCost]:
        """Measure ONNX files on a target.

        Raises:
            ArtifactError: A file is damaged or cannot run on the target.
            DeviceError: The target cannot be used, or nothing here measures the metric.
        """

    @abstractmethod
    def calibrate(
        self, target: Target, space: SearchSpace, store: DeviceStore, options: CalibrationOptions
    ) -> Profile:
        """Measure networks until the store has enough networks of the space; return its profile.

        Raises:
            ConfigError: The metric cannot be calibrated with these options.
            DeviceError: The target cannot be used, nothing here measures the metric, or the store
                knows the target from other hardware.
        """

    @abstractmethod
    def has(self, store: DeviceStore, device: str) -> bool:
        """Return whether a store has a profile of a device."""

    @abstractmethod
    def load(self, store: DeviceStore, device: str) -> Profile:
        """Read a profile; raise ConfigError or ArtifactError if it is missing or damaged."""

    @abstractmethod
    def save(self, store: DeviceStore, profile: Profile) -> None:
        """Write a profile; an existing one of the same device is replaced."""

    @abstractmethod
    def remove(self, store: DeviceStore, device: str) -> None:
        """Remove the profile of a device, if there is one."""

    @abstractmethod
    def profile(self, data: Mapping[str, Any]) -> Profile:
        """Return the profile of a JSON object that `Profile.to_json` returned."""

    @abstractmethod
    def predictor(self, profile: Profile) -> CalibratedPredictor:
        """Return the predictor that a profile gives."""

    @abstractmethod
    def costs_of(self, profile: Profile) -> Sequence[float]:
        """Return the cost of each network of a profile."""

    def batch(self, target: Target) -> int:
        """Return the batch size at which the predictor reads workloads."""
        return 1


def latency_cost(measurement: Measurement) -> MeasuredCost:
    """Return a latency measurement as a cost."""
    ends = measurement.headline
    numbers = ends.p50, ends.p20, ends.p80
    return MeasuredCost(
        _Latency.name, measurement.target, *numbers, "ms", measurement.clock, measurement.n
    )


class _OperatorCost(DeviceMetric):
    """Cost that is predicted from the counts of a network's operators."""

    name: ClassVar[MeasuredMetric]

    def calibrate(
        self, target: Target, space: SearchSpace, store: DeviceStore, options: CalibrationOptions
    ) -> DeviceProfile:
        """See `DeviceMetric.calibrate`."""
        return calibrate(target, space, store, options, self.name)

    def has(self, store: DeviceStore, device: str) -> bool:
        """See `DeviceMetric.has`."""
        return store.has(device, self.name)

    def load(self, store: DeviceStore, device: str) -> DeviceProfile:
        """See `DeviceMetric.load`."""
        return store.load(device, self.name)

    def save(self, store: DeviceStore, profile: Profile) -> None:
        """See `DeviceMetric.save`."""
        assert isinstance(profile, DeviceProfile)
        store.save(profile)

    def remove(self, store: DeviceStore, device: str) -> None:
        """See `DeviceMetric.remove`."""
        store.remove(device, self.name)

    def profile(self, data: Mapping[str, Any]) -> DeviceProfile:
        """See `DeviceMetric.profile`."""
        return DeviceProfile.from_json(data)

    def predictor(self, profile: Profile) -> DevicePredictor:
        """See `DeviceMetric.predictor`."""
        assert isinstance(profile, DeviceProfile)
        return DevicePredictor.of(profile)

    def costs_of(self, profile: Profile) -> list[float]:
        """See `DeviceMetric.costs_of`."""
        assert isinstance(profile, DeviceProfile)
        costs: list[float] = profile.costs.tolist()
        return costs


class _Latency(_OperatorCost):
    name = "latency_ms"
    unit = "ms"
    noun = "latency"

    @property
    def pick(self) -> str:
        """See `DeviceMetric.pick`."""
        return "fastest"

    def measure(self, models: Mapping[str, Path], target: Target) -> dict[str, MeasuredCost]:
        """See `DeviceMetric.measure`."""
        return {name: latency_cost(found) for name, found in measure(models, target).items()}


class _Energy(_OperatorCost):
    name = "energy_mj"
    unit = "mJ"
    noun = "energy"

    def measure(self, models: Mapping[str, Path], target: Target) -> dict[str, MeasuredCost]:
        """See `DeviceMetric.measure`; the networks run one after the other."""
        found = {}
        for name, model in models.items():
            with exit_paths(model, target) as paths:
                readings = [measured_energy(path.model, target) for path in paths]
                weights = [path.weight for path in paths]
            mean = sum(w * each.energy_mj for w, each in zip(weights, readings, strict=True))
            numbers = (mean,) * 3
            about = self.unit, readings[-1].counter, readings[-1].runs
            found[name] = MeasuredCost(self.name, target.name, *numbers, *about)
        return found


class _PeakMemory(DeviceMetric):
    name = METRIC
    unit = "bytes"
    noun = "peak memory"

    def check(self, target: Target) -> None:
        """See `DeviceMetric.check`."""
        MemoryPredictor(target)  # refuses other runtimes
        if target.device.is_here and target.device.hardware != "cpu":
            raise ConfigError(
                f"{self.name} is not measured on {target.name}; choose a target with cpu"
            )

    def measure(self, models: Mapping[str, Path], target: Target) -> dict[str, MeasuredCost]:
        """See `DeviceMetric.measure`; every network runs in fresh processes, for a few seconds."""
        found = {}
        for name, model in models.items():
            with exit_paths(model, target) as paths:
                peak = peak_memory(paths[-1].model, target)
            numbers = float(peak.peak_bytes), float(peak.lowest_bytes), float(peak.highest_bytes)
            about = self.unit, "resident memory", peak.processes
            found[name] = MeasuredCost(self.name, target.name, *numbers, *about)
        return found

    def calibrate(
        self, target: Target, space: SearchSpace, store: DeviceStore, options: CalibrationOptions
    ) -> MemoryProfile:
        """See `DeviceMetric.calibrate`."""
        return calibrate_memory(target, space, store, options)

    def has(self, store: DeviceStore, device: str) -> bool:
        """See `DeviceMetric.has`."""
        return has_memory(store, device)

    def load(self, store: DeviceStore, device: str) -> MemoryProfile:
        """See `DeviceMetric.load`."""
        return load_memory(store, device)

    def save(self, store: DeviceStore, profile: Profile) -> None:
        """See `DeviceMetric.save`."""
        assert isinstance(profile, MemoryProfile)
        save_memory(store, profile)

    def remove(self, store: DeviceStore, device: str) -> None:
        """See `DeviceMetric.remove`."""
        remove_memory(store, device)

    def profile(self, data: Mapping[str, Any]) -> MemoryProfile:
        """See `DeviceMetric.profile`."""
        return MemoryProfile.from_json(data)

    def predictor(self, profile: Profile) -> MemoryPredictor:
        """See `DeviceMetric.predictor`."""
        assert isinstance(profile, MemoryProfile)
        return profile.predictor()

    def costs_of(self, profile: Profile) -> list[float]:
        """See `DeviceMetric.costs_of`."""
        assert isinstance(profile, MemoryProfile)
        return [float(peak) for peak in profile.peaks_bytes]

    def batch(self, target: Target) -> int:
        """Return the target's batch size, since memory is not proportional to it."""
        return target.device.batch


DEVICE_METRICS: Registry[DeviceMetric] = Registry("metric", __package__)
"""Metrics that depend on the device, by their names in recipes."""

PLUGINS = (
    Plugin("metric", _Latency.name, _Latency(), "median time of a run", usual=True),
    Plugin("metric", _Energy.name, _Energy(), "energy of a run, by the hardware's counters"),
    Plugin("metric", _PeakMemory.name, _PeakMemory(), "memory of loading and running"),
)
