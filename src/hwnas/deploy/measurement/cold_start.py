"""Time until a network's first answer in a new process.

A fresh process starts the runtime with a tiny network, then loads the file and runs it. The start
of Python and the imports of hwnas are not included. All files are in the system's cache, so reading
them from a disk is not included either.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hwnas.deploy.measurement.fresh_process import (
    answer_of_process,
    prepared_arguments,
    print_answer,
    reference_target,
)
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError

__all__ = ["StartMeasurement", "StartTimes", "cold_start"]

_MODULE = "hwnas.deploy.measurement.cold_start"  # not __name__, which is __main__ in the process
_WARM_RUNS = 20


@dataclass(frozen=True)
class StartTimes:
    """Times of one start, in milliseconds on the wall clock.

    Attributes:
        runtime_ms: Import of the runtime, and its first network, a tiny one.
        load_ms: Loading of the file.
        first_ms: First run of a batch.
        later_ms: Median of later runs, for comparison.
    """

    runtime_ms: float
    load_ms: float
    first_ms: float
    later_ms: float

    @property
    def until_answer_ms(self) -> float:
        """Time from the import of the runtime to the first answer."""
        return self.runtime_ms + self.load_ms + self.first_ms


@dataclass(frozen=True)
class StartMeasurement:
    """Times of several starts of one network on a target.

    Attributes:
        target: Name of the target.
        starts: Times of each start, in their order.
    """

    target: str
    starts: tuple[StartTimes, ...]

    @property
    def median(self) -> StartTimes:
        """Median of each time over the starts."""
        rows: Sequence[dict[str, float]] = [asdict(each) for each in self.starts]
        return StartTimes(**{name: median(row[name] for row in rows) for name in rows[0]})

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, whose numbers state their unit."""
        found = self.median
        return {
            "target": self.target,
            **asdict(found),
            "until_answer_ms": found.until_answer_ms,
            "starts": [asdict(each) for each in self.starts],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StartMeasurement:
        """Return the measurement that `to_json` wrote.

        Raises:
            KeyError, TypeError: The object is damaged.
        """
        return cls(data["target"], tuple(StartTimes(**each) for each in data["starts"]))


def cold_start(
    model: Path, target: Target, starts: int = 5, timeout_s: float = 300.0
) -> StartMeasurement:
    """Start fresh processes that load and run an ONNX file, one after the other.

    Args:
        model: ONNX file.
        target: Target on which to run it, on this machine or on a device.
        starts: Number of processes. One more is started before, so that all find the files in the
            system's cache.
        timeout_s: Time limit of each process, in seconds; an agent has a limit of its own.

    Raises:
        ArtifactError: The file is missing, damaged or cannot run on the target.
        ConfigError: ``starts`` is less than 1.
        DeviceError: The target cannot be used, its device does not answer, or a process was killed
            or took too long.
    """
    if starts < 1:
        raise ConfigError(f"starts is {starts}; expected at least 1")
    if not target.device.is_here:
        from hwnas.deploy.agent.client.client import reading_elsewhere

        return StartMeasurement.from_json(reading_elsewhere("cold_start", model, target, starts))
    check_usable(RUNTIMES[target.device.runtime], target)
    with tempfile.TemporaryDirectory() as folder:
        arguments = prepared_arguments(model, target, Path(folder))
        what = f"{model} on {target.name}"
        answers = [
            answer_of_process(_MODULE, arguments, what, timeout_s) for _ in range(1 + starts)
        ]
    return StartMeasurement(target.name, tuple(StartTimes(**each) for each in answers[1:]))


def _times(executable: Path, tiny: Path, target: Target) -> dict[str, float]:
    """Measure in the fresh process."""
    runtime, one = RUNTIMES[target.device.runtime], reference_target(target)
    began = time.perf_counter()
    _run(runtime.load(tiny, one), 1)
    started = time.perf_counter()
    session = runtime.load(executable, target)
    loaded = time.perf_counter()
    runs_s = [_run(session, target.device.batch) for _ in range(1 + _WARM_RUNS)]
    seconds = (started - began, loaded - started, runs_s[0], median(runs_s[1:]))
    return asdict(StartTimes(*(1e3 * each for each in seconds)))


def _run(session: Session, batch: int) -> float:
    """Run a network once, and return the seconds that this takes."""
    images = np.zeros((batch, *session.input_shape), np.float32)
    began = time.perf_counter()
    session.run(images)
    return time.perf_counter() - began


if __name__ == "__main__":
    _model, _tiny, _target = sys.argv[1:]
    print_answer(partial(_times, Path(_model), Path(_tiny), Target.parse(_target)))
