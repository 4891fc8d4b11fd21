"""Timing a bundle again, where it is now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.device import Target
from hwnas.deploy.measurement import Measurement
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.sealed import Check
from hwnas.deploy.stopwatch import TimingSettings
from hwnas.deploy.timing import Subject, measure_together
from hwnas.errors import ConfigError, DeviceError

__all__ = ["retime"]


def retime(bundle: Bundle, settings: TimingSettings | None = None) -> list[Check]:
    """Measure again what was measured when a bundle was made, all in one session.

    A time is no reason to refuse a bundle, and on another machine it has to differ; so each check
    says what was found, and none fails. Limits are what `hwnas.deploy.gate` is for.

    Args:
        bundle: Its network is timed, and those of its other forms that a sweep has timed.
        settings: How much to time; about half a second a network if None.

    Raises:
        ArtifactError: A file is damaged.
        ConfigError: Nothing was measured when it was made.
        DeviceError: A device elsewhere does not answer.
    """
    recorded = {f"time of {m.target}, {file.name}": (file, m) for file, m in _recorded(bundle)}
    if not recorded:
        raise ConfigError(
            f"{bundle.folder} has no measurements to repeat; time it with: hwnas measure "
            f"{bundle.onnx_file} --target TARGET"
        )
    unusable = {name: _unusable(before.target) for name, (_, before) in recorded.items()}
    subjects = {
        name: Subject(file, Target.parse(before.target))
        for name, (file, before) in recorded.items()
        if unusable[name] is None
    }
    now = measure_together(subjects, settings)
    return [
        Check(name, True, _compared(now[name], before) if name in now else f"{unusable[name]}")
        for name, (_, before) in recorded.items()
    ]


def _recorded(bundle: Bundle) -> Iterator[tuple[Path, Measurement]]:
    """Files, and how long they took."""
    yield from ((bundle.onnx_file, measurement) for measurement in bundle.measurements)
    described = zip(bundle.artifacts, bundle.description["artifacts"], strict=True)
    for artifact, about in described:
        if about.get("measurement"):
            yield bundle.folder / artifact.file, Measurement.from_json(about["measurement"])


def _unusable(name: str) -> str | None:
    """Why a target cannot be measured now, or None if it can."""
    try:
        target = Target.parse(name)
        if target.device.is_here:
            check_usable(RUNTIMES[target.device.runtime], target)
    except (ConfigError, DeviceError) as error:
        return f"not timed here: {error}"
    return None


def _compared(now: Measurement, before: Measurement) -> str:
    """Both times, and what may be behind their difference."""
    change = now.latency_ms / before.latency_ms - 1
    text = (
        f"{now.latency_ms:.4g} ms now, {before.latency_ms:.4g} ms when it was made, {change:+.1%}"
    )
    if now.hardware != before.hardware:
        return f"{text}; that was {before.hardware}, this is {now.hardware}"
    # The anchor is one network everywhere, so what it takes longer is not the network's fault.
    anchor = now.anchor_ms / before.anchor_ms - 1
    return f"{text}; the anchor network, which tells the machine's own drift, {anchor:+.1%}"
