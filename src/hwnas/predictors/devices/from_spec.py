"""Latency on a device of which only the spec sheet is known, from known devices like it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hwnas.deploy.onnx.workload import OnnxWorkload
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.devices.device import MINIMUM_MEASUREMENTS, DevicePredictor
from hwnas.predictors.devices.prediction import Prediction
from hwnas.predictors.devices.published import published_devices
from hwnas.predictors.devices.spec_sheet import SpecSheet, stored_spec
from hwnas.predictors.devices.store import DeviceStore
from hwnas.predictors.estimate import NORMAL_90, Estimate
from hwnas.predictors.features.physical import FEATURES, quantities
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.nearest_devices import NearestDevices
from hwnas.search_spaces import OperatorCountTable

__all__ = ["predict_from_spec"]

_LATENCY = "latency_ms"
_MOST_REASONS = 3
_DEVICE_MARGIN, _NETWORK_MARGIN = 2.0, 3.0  # factors beyond the known range that raise no doubt


@dataclass(frozen=True, eq=False)
class _Known:
    """Known device: its spec sheet, its origin, and the log latencies of networks on it."""

    spec: SpecSheet
    calibrated: bool
    logs: Callable[[OperatorCountTable], Numbers]


def predict_from_spec(
    spec: SpecSheet, network: OnnxWorkload | OperatorCountTable, store: DeviceStore
) -> Prediction:
    """Predict the latency of one image in float32 on a device that nobody has measured.

    The prediction is the geometric mean of the predicted latencies on the three known devices with
    the most similar spec sheets. The 90% interval is as wide as the errors on published devices,
    each of which was held out; if the device or the network is unlike all known ones, as on the
    published device that is predicted worst.

    Args:
        spec: Spec sheet of the device.
        network: ONNX file that was read, or operator counts of one network.
        store: Store of calibrated devices. Those with a spec sheet are known devices, too.

    Raises:
        ArtifactError: A profile or spec sheet in the store is damaged.
    """
    steps = network if isinstance(network, OperatorCountTable) else network.steps
    calibrated, unused = _calibrated(store)
    published = published_devices()
    known = [*(_Known(p.spec, False, p.cost.logs) for p in published.devices), *calibrated]
    nearest = NearestDevices(np.array([each.spec.description for each in known]))
    weights = nearest.weights(spec.description)
    used = [k for k in np.argsort(nearest.distances(spec.description)) if weights[k] > 0]
    log_ms = sum(weights[k] * float(known[k].logs(steps)[0]) for k in used)
    doubts = [*_unlike_devices(spec, known), *_unlike_networks(steps, published.largest)]
    if isinstance(network, OnnxWorkload) and network.unknown:
        doubts.append(f"unknown operators: {', '.join(network.unknown)}")
    reach = published.most_log_error90 if doubts else published.log_error90
    notes = [
        "from the spec sheet alone, no measurement: one image in float32, the mean of the most "
        f"similar known devices ({', '.join(known[k].spec.name for k in used)})",
        _sources(known, unused),
    ]
    if doubts:
        more = len(doubts) - _MOST_REASONS
        end = f"; and {more} more" if more > 0 else ""
        notes.append(f"little more than a guess: {'; '.join(doubts[:_MOST_REASONS])}{end}")
    estimate = Estimate.log_normal(_LATENCY, log_ms, reach / NORMAL_90, spec.name)
    return Prediction(estimate, 0, tuple(notes))


def _calibrated(store: DeviceStore) -> tuple[list[_Known], list[str]]:
    """Return the calibrated devices that can help, and the names of those without a spec sheet."""
    found, unused = [], []
    for name in store.devices:
        if not store.has(name) or not _one_float_image(name):
            continue
        spec, profile = stored_spec(store, name), store.load(name)
        if spec is None:
            unused.append(name)
        elif len(profile) >= MINIMUM_MEASUREMENTS:
            predictor = DevicePredictor.of(profile)
            found.append(_Known(spec, True, _logs_on(predictor)))
    return found, unused


def _one_float_image(device: str) -> bool:
    """Return False for a target with another batch or number format; other names may be any."""
    try:
        target = Target.parse(device)
    except ConfigError:
        return True
    return target.device.batch == 1 and target.format == "fp32"


def _logs_on(predictor: DevicePredictor) -> Callable[[OperatorCountTable], Numbers]:
    return lambda steps: predictor.logs(predictor.blocks(steps))[0]


def _unlike_devices(spec: SpecSheet, known: Iterable[_Known]) -> list[str]:
    """Return in which respects a device is unlike all known ones, in words."""
    specs = [each.spec for each in known]
    alike = [each.name for each in specs if each.kind == spec.kind]
    doubts = []
    if len(alike) < 2:
        seen = f"only {alike[0]}" if alike else "none"
        doubts.append(f"of the known devices {seen} is of kind {spec.kind}")
    for field in ("cores", "clock_ghz", "gflops", "bandwidth_gbs", "cache_mb"):
        value, values = getattr(spec, field), [getattr(each, field) for each in specs]
        least, most = min(values), max(values)
        if not least / _DEVICE_MARGIN <= value <= _DEVICE_MARGIN * most:
            doubts.append(f"{field} is {value:g} (known devices: {least:g} to {most:g})")
    return doubts


def _unlike_networks(steps: OperatorCountTable, largest: Sequence[float]) -> list[str]:
    """Return in which quantities a network is larger than all of the tables, in words."""
    return [
        f"{name} is {value:,.0f} (networks of the tables: at most {most:,.0f})"
        for name, value, most in zip(FEATURES, quantities(steps)[0], largest, strict=True)
        if value > _NETWORK_MARGIN * most and name.endswith(("_macs", "_bytes"))
    ]


def _sources(known: Iterable[_Known], unused: list[str]) -> str:
    published = [each.spec.name for each in known if not each.calibrated]
    mine = [each.spec.name for each in known if each.calibrated]
    own = f"{len(mine)} that you calibrated ({', '.join(mine)})" if mine else "none of yours"
    text = (
        f"learnt from {len(published)} devices of the tables of HELP (Lee et al., 2021; "
        f"{', '.join(published)}) and {own}"
    )
    if unused:
        text += (
            f"; {', '.join(unused)} would help, too, with a spec sheet: "
            f"`hwnas calibrate --target {unused[0]} --spec FILE`"
        )
    return text
