"""Latency under lasting load: a device that grows hot slows down.

A network runs again and again, and its latency is measured in parts of some seconds, one after the
other. It pauses for a moment between the parts, in which it is loaded again; a remote device is
sent one timing job after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError

__all__ = ["SustainedLatency", "TimedPart", "measure_sustained"]

_PART_S = 10.0  # or a tenth of the time, if that is shorter
_ROUNDS = 10_000  # the most that an agent accepts
_COMPARED = 0.1  # share of the time at the beginning and at the end
_LONGEST_MINUTES = 24 * 60


@dataclass(frozen=True)
class TimedPart:
    """Latency in one part of the time.

    Attributes:
        begin_s: Begin of the part, in seconds since the first one began.
        measurement: Latency, and the conditions at the end of the part.
    """

    begin_s: float
    measurement: Measurement


@dataclass(frozen=True)
class SustainedLatency:
    """Latency of one network that ran again and again.

    Attributes:
        parts: Parts of the time, in their order; at least one.
    """

    parts: tuple[TimedPart, ...]

    @property
    def target(self) -> str:
        """Name of the target."""
        return self.parts[0].measurement.target

    @property
    def first_ms(self) -> float:
        """Median latency of a batch in the first tenth of the parts, in milliseconds."""
        return self._median_ms(self.parts[: self._compared])

    @property
    def last_ms(self) -> float:
        """Median latency of a batch in the last tenth of the parts, in milliseconds."""
        return self._median_ms(self.parts[-self._compared :])

    @property
    def slowdown(self) -> float:
        """Latency at the end over that at the beginning; above 1 if the device slowed down."""
        return self.last_ms / self.first_ms

    @property
    def _compared(self) -> int:
        return max(1, round(_COMPARED * len(self.parts)))

    @staticmethod
    def _median_ms(parts: tuple[TimedPart, ...]) -> float:
        return median(each.measurement.latency_ms for each in parts)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, whose numbers state their unit."""
        return {
            "target": self.target,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "slowdown": self.slowdown,
            "parts": [
                {"begin_s": each.begin_s, "measurement": each.measurement.to_json()}
                for each in self.parts
            ],
        }


def measure_sustained(
    model: Path,
    target: Target,
    minutes: float,
    progress: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SustainedLatency:
    """Measure the latency of a network that runs again and again, as its device grows hot.

    Args:
        model: ONNX file.
        target: Target on which to run it, on this machine or on a device.
        minutes: Time for which it runs; the last part may end a little later.
        progress: Function that is called with the completed share, from 0 to 1.
        clock: Clock in seconds.

    Raises:
        ConfigError: The time is not positive, or longer than a day.
        ArtifactError: The file is damaged or cannot run on the target.
        DeviceError: The target cannot be used, or its device does not answer.
    """
    if not 0 < minutes <= _LONGEST_MINUTES:
        raise ConfigError(
            f"the time is {minutes:g} minutes; expected more than 0, and at most "
            f"{_LONGEST_MINUTES:,}"
        )
    whole_s = 60 * minutes
    part_s = min(_PART_S, _COMPARED * whole_s)
    settings = TimingSettings(rounds=_ROUNDS, max_seconds=part_s, retries=0)
    began, parts = clock(), list[TimedPart]()
    while not parts or clock() - began < whole_s:
        begin_s = clock() - began
        parts.append(TimedPart(begin_s, measure({model.name: model}, target, settings)[model.name]))
        if progress is not None:
            progress(min(1.0, (clock() - began) / whole_s))
    return SustainedLatency(tuple(parts))
