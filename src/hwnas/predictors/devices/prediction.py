"""Predicted costs of a network on known devices, with remarks on how reliable they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hwnas.deploy.onnx.workload import OnnxWorkload
from hwnas.deploy.targets.machine import processor_of
from hwnas.deploy.targets.target import HARDWARE, known_hardware
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.fingerprint import Fingerprint
from hwnas.predictors.devices.shipped import shipped_profiles
from hwnas.predictors.devices.store import METRICS, DeviceProfile, DeviceStore
from hwnas.predictors.estimate import Estimate
from hwnas.predictors.explain import unknown_share
from hwnas.predictors.models.cold_start import from_fingerprint
from hwnas.search_spaces import OperatorCountTable

__all__ = [
    "KnownDevice",
    "Prediction",
    "elsewhere",
    "known_devices",
    "predict",
    "predict_from_fingerprint",
]

_MOST_REASONS = 3


@dataclass(frozen=True, eq=False)
class KnownDevice:
    """Device for which costs can be predicted.

    Attributes:
        profile: Measurements on the device.
        origin: Origin of the profile: the user's store, or hwnas itself.
    """

    profile: DeviceProfile
    origin: Literal["store", "shipped"]

    def to_json(self) -> dict[str, Any]:
        """Return the profile's description, with the number of its networks instead of names."""
        values = self.profile.description()
        return {**values, "networks": len(self.profile), "origin": self.origin}


def known_devices(store: DeviceStore) -> list[KnownDevice]:
    """Return all devices with all their metrics, sorted; stored profiles replace shipped ones."""
    found = {
        (name, metric): KnownDevice(store.load(name, metric), "store")
        for name in store.devices
        for metric in store.metrics(name)
    }
    for metric in METRICS:
        for name, profile in shipped_profiles(metric).items():
            found.setdefault((name, metric), KnownDevice(profile, "shipped"))
    return [found[key] for key in sorted(found)]


@dataclass(frozen=True)
class Prediction:
    """Prediction of one cost, with remarks.

    Attributes:
        estimate: Estimate of the cost.
        samples: Number of networks that were measured on the device.
        notes: Remarks for the user, in words.
    """

    estimate: Estimate
    samples: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the 90% interval beside the estimate."""
        lower, upper = self.estimate.interval90
        values = {**self.estimate.to_json(), "lower90": lower, "upper90": upper}
        return {**values, "samples": self.samples, "notes": list(self.notes)}


def predict(
    store: DeviceStore, devices: Sequence[str], network: OnnxWorkload | OperatorCountTable
) -> list[Prediction]:
    """Predict one network's cost in every metric that is known of the devices.

    Args:
        store: Store of calibrated devices.
        devices: Names of targets or of custom devices.
        network: ONNX file that was read, or operator counts of one network.

    Raises:
        ConfigError: A device is not known.
        ArtifactError: A profile is damaged, or was written by a newer version of hwnas.
    """
    known = known_devices(store)
    names = list(dict.fromkeys(each.profile.device for each in known))
    found = []
    for device in devices:
        if device not in names:
            raise ConfigError(
                f"device {device!r} is not known: `hwnas calibrate --target {device}` measures "
                f"it; {closest(device, names)}"
            )
        found += [_predict(each, network) for each in known if each.profile.device == device]
    return found


def predict_from_fingerprint(
    fingerprint: Fingerprint, network: OnnxWorkload | OperatorCountTable
) -> Prediction:
    """Predict the latency on a target on which no network was measured, from its fingerprint."""
    steps = network if isinstance(network, OperatorCountTable) else network.steps
    [estimate] = from_fingerprint(fingerprint, steps)
    known = len(shipped_profiles())
    note = (
        f"no network was measured; predicted from {known} known targets, weighted by the latencies "
        "of small models"
    )
    return Prediction(estimate, 0, (note,))


def _predict(known: KnownDevice, network: OnnxWorkload | OperatorCountTable) -> Prediction:
    profile = known.profile
    predictor = DevicePredictor.of_known(profile, shipped=known.origin == "shipped")
    steps = network if isinstance(network, OperatorCountTable) else network.steps
    [estimate] = predictor.predict_steps(steps)
    notes = [*elsewhere(profile.device, profile.hardware), *_unfamiliar(predictor, steps)]
    notes += [predictor.note] if predictor.note else []
    if isinstance(network, OnnxWorkload) and network.unknown:
        notes.append(_unknown(network.unknown, unknown_share(predictor, network)))
    return Prediction(estimate, len(profile), tuple(notes))


def elsewhere(device: str, hardware: str) -> list[str]:
    """Return a note if a target was measured on another machine than the one it belongs to now."""
    place = device.split("-")[0]
    if place not in known_hardware() or hardware in ("", now := processor_of(place)):
        return []
    machine = "this machine" if place in HARDWARE else place
    return [
        f"measured on {hardware}, but {machine} is {now}; `hwnas calibrate --target {device}` "
        "measures on the new hardware"
    ]


def _unfamiliar(predictor: DevicePredictor, steps: OperatorCountTable) -> list[str]:
    reasons = predictor.unfamiliar(steps)
    if not reasons:
        return []
    more = len(reasons) - _MOST_REASONS
    end = f"; and {more} more" if more > 0 else ""
    return [f"outside the known range: {'; '.join(reasons[:_MOST_REASONS])}{end}"]


def _unknown(unknown: Mapping[str, int], share: float) -> str:
    kinds = ", ".join(f"{name} ({count})" for name, count in unknown.items())
    return (
        f"unknown operators: {kinds}; predicted from the bytes they move, {share:.1%} of the cost"
    )
