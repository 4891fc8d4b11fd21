"""Repeated timing of a bundle on the machine where it is now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.sealed import SealCheck
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement, TimedNetwork
from hwnas.deploy.measurement.timing import measure_together
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError, DeviceError

__all__ = ["retime"]


def retime(bundle: Bundle, settings: TimingSettings | None = None) -> list[SealCheck]:
    """Repeat all measurements that were made when a bundle was made, in one session.

    Latencies differ between machines and are no reason to reject a bundle, so each check reports
    its result and none fails. `hwnas.deploy.gate.gate` checks limits.

    Args:
        bundle: Bundle whose network is timed, and whose other artifacts are timed if a sweep timed
            them.
        settings: Timing settings; about half a second per network if None.

    Raises:
        ArtifactError: A file is damaged.
        ConfigError: The bundle has no measurements.
        DeviceError: A remote device does not answer.
    """
    recorded = {f"time of {m.target}, {file.name}": (file, m) for file, m in _recorded(bundle)}
    if not recorded:
        raise ConfigError(
            f"{bundle.folder} has no measurements to repeat; time it with: hwnas measure "
            f"{bundle.onnx_file} --target TARGET"
        )
    unusable = {name: _unusable(before.target) for name, (_, before) in recorded.items()}
    subjects = {
        name: TimedNetwork(file, Target.parse(before.target))
        for name, (file, before) in recorded.items()
        if unusable[name] is None
    }
    now = measure_together(subjects, settings)
    return [
        SealCheck(name, True, _compared(now[name], before) if name in now else f"{unusable[name]}")
        for name, (_, before) in recorded.items()
    ]


def _recorded(bundle: Bundle) -> Iterator[tuple[Path, Measurement]]:
    """Yield the files that were timed, each with its measurement."""
    for measurement in bundle.measurements:
        yield bundle.file_in(_format(measurement.target)), measurement
    described = zip(bundle.artifacts, bundle.description["artifacts"], strict=True)
    for artifact, about in described:
        if about.get("measurement"):
            yield bundle.folder / artifact.file, Measurement.from_json(about["measurement"])


def _format(name: str) -> str:
    """Return the number format of a target, which need not be known here."""
    try:
        return Target.parse(name).format
    except ConfigError:
        return "fp32"


def _unusable(name: str) -> str | None:
    """Return why a target cannot be measured now, or None if it can."""
    try:
        target = Target.parse(name)
        if target.device.is_here:
            check_usable(RUNTIMES[target.device.runtime], target)
    except (ConfigError, DeviceError) as error:
        return f"not timed here: {error}"
    return None


def _compared(now: Measurement, before: Measurement) -> str:
    """Return a text with both times, and with a possible reason for their difference."""
    change = now.latency_ms / before.latency_ms - 1
    text = f"{now.latency_ms:.4g} ms now, {before.latency_ms:.4g} ms in the bundle, {change:+.1%}"
    if now.hardware != before.hardware:
        return f"{text}; measured on {before.hardware} then, on {now.hardware} now"
    if before.anchor_ms == 0:  # measured without the reference model
        return text
    # The reference model is the same everywhere, so a change of its time is due to the machine.
    reference = now.anchor_ms / before.anchor_ms - 1
    return f"{text}; the reference model, which shows the machine's own drift, {reference:+.1%}"
