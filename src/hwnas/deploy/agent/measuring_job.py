"""Jobs of an agent, and their states."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from hwnas.deploy.agent.signing import is_digest
from hwnas.deploy.error_line import first_line
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["LATENCY", "QUANTITIES", "JobState", "MeasuringJob", "MeasuringRequest"]

LATENCY = "latency"
QUANTITIES = (LATENCY, "energy", "peak_memory", "cold_start")
"""What an agent can be asked to measure."""

_MOST_SUBJECTS, _LONGEST_NAME, _MOST_REPEATS = 512, 200, 20
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")
_MOST = TimingSettings(
    warmup=1000,
    rounds=10_000,
    round_ms=1e4,
    max_seconds=600,
    max_wall_cpu_ratio=100,
    max_slowdown=100,
    retries=10,
    patience_s=600,
)
"""Upper bounds of a job's settings, which limit the time that a job can take."""


@dataclass(frozen=True)
class MeasuringRequest:
    """Network to measure on a target of the agent's machine.

    Attributes:
        model: SHA-256 of the ONNX file, in hexadecimal.
        target: Name of the target.
    """

    model: str
    target: str

    def __post_init__(self) -> None:
        if not is_digest(self.model):
            raise ConfigError(f"model is {self.model!r}; expected 64 hexadecimal digits")
        if not (isinstance(self.target, str) and Target.parse(self.target).device.is_here):
            raise ConfigError(
                f"target is {self.target!r}; expected a target of the agent's machine"
            )


@dataclass(frozen=True)
class MeasuringJob:
    """Networks to measure in one session.

    Latencies are timed interleaved with one another; anything else is measured one network after
    the other.

    Attributes:
        subjects: Networks by names that the host chose.
        settings: Settings that say how much to time.
        quantity: What to measure, one of `QUANTITIES`.
        repeats: Number of processes for each network, where a quantity is measured in processes of
            its own; 0 for the usual number.
    """

    subjects: Mapping[str, MeasuringRequest]
    settings: TimingSettings
    quantity: str = LATENCY
    repeats: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.subjects) <= _MOST_SUBJECTS:
            raise ConfigError(
                f"the job has {len(self.subjects)} networks; expected 1 to {_MOST_SUBJECTS}"
            )
        if broken := next(filter(_HALF_A_CHARACTER.search, self.subjects), None):
            raise ConfigError(f"a name is {broken[:80]!r}; expected text that UTF-8 can encode")
        if self.quantity not in QUANTITIES:
            raise ConfigError(
                f"the quantity is {str(self.quantity)[:80]!r}; expected one of "
                f"{', '.join(QUANTITIES)}"
            )
        if type(self.repeats) is not int or not 0 <= self.repeats <= _MOST_REPEATS:
            raise ConfigError(
                f"repeats is {str(self.repeats)[:80]}; expected an integer from 0 to "
                f"{_MOST_REPEATS}"
            )
        longest = max(map(len, self.subjects))
        if longest > _LONGEST_NAME:
            raise ConfigError(f"a name has {longest} characters; expected at most {_LONGEST_NAME}")
        for setting in fields(TimingSettings):
            value, most = (getattr(each, setting.name) for each in (self.settings, _MOST))
            if value > most:
                raise ConfigError(f"{setting.name} is {value:g}; expected at most {most:g}")

    @property
    def models(self) -> list[str]:
        """ONNX files that the job needs, each once."""
        return list(dict.fromkeys(asked.model for asked in self.subjects.values()))

    def to_json(self) -> dict[str, Any]:
        """Return the job as a JSON object; jobs for latencies are as earlier agents know them."""
        subjects = {name: asdict(asked) for name, asked in self.subjects.items()}
        known = {"subjects": subjects, "settings": asdict(self.settings)}
        if self.quantity == LATENCY:
            return known
        return {**known, "quantity": self.quantity, "repeats": self.repeats}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeasuringJob:
        """Return the job that `to_json` wrote, from an object that is not trusted.

        Raises:
            ConfigError: The object is not a job, or exceeds the upper bounds.
        """
        try:
            subjects = {name: MeasuringRequest(**asked) for name, asked in data["subjects"].items()}
            settings = TimingSettings(**_numbers(data["settings"]))
            quantity, repeats = data.get("quantity", LATENCY), data.get("repeats", 0)
        except ConfigError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ConfigError(f"the job is not valid: {type(error).__name__}: {error}") from error
        return cls(subjects, settings, quantity, repeats)


def _numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings after a check that all are finite numbers, and integers where required."""
    found = {}
    for setting in fields(TimingSettings):
        value = settings[setting.name]
        whole = isinstance(setting.default, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ConfigError(f"{setting.name} is {value!r}; expected a number")
        if not math.isfinite(value):
            raise ConfigError(f"{setting.name} is {value!r}; expected a finite number")
        found[setting.name] = value
    return found


_State = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True)
class JobState:
    """State of a job.

    Attributes:
        state: Stage of the job.
        ahead: Number of jobs that come first, while it waits.
        share: Completed share of the job, from 0 to 1.
        measurements: Latencies by the host's names, if it is done.
        failure: Body of a refusal, if it failed.
        readings: Other quantities by the host's names, as JSON objects, if it is done.
    """

    state: _State
    ahead: int = 0
    share: float = 0.0
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    failure: Mapping[str, Any] = field(default_factory=dict)
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True if the state cannot change any more."""
        return self.state in ("done", "failed")

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        found = {name: each.to_json() for name, each in self.measurements.items()}
        return {**vars(self), "measurements": found}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobState:
        """Return the state that `to_json` wrote.

        Raises:
            ArtifactError: The object is damaged.
        """
        try:
            if data["state"] not in get_args(_State):
                raise ValueError(f"state is {data['state']!r}")
            measurements = data["measurements"].items()
            found = {name: Measurement.from_json(each) for name, each in measurements}
            ahead, share, failure = int(data["ahead"]), float(data["share"]), dict(data["failure"])
            readings = {name: dict(each) for name, each in data.get("readings", {}).items()}
            return cls(data["state"], ahead, share, found, failure, readings)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"the state of a job is damaged: {first_line(error)}") from error
