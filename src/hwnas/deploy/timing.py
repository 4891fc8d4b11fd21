"""How long networks take on a target, measured so that a busy machine does not fool us.

Candidates take turns with each other and with a fixed anchor network, so that drift hits all alike.
Both CPU time and wall time are read around each round; where other work took the processor away in
between, the wall clock runs ahead of the CPU clock, and the round is repeated later.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import storage_errors
from hwnas.deploy.anchor import write_anchor
from hwnas.deploy.catalogue import processor_of, versions
from hwnas.deploy.conditions import conditions
from hwnas.deploy.device import HARDWARE, Target
from hwnas.deploy.measurement import Measurement, Quantiles
from hwnas.deploy.runtime import Session
from hwnas.deploy.runtimes import RUNTIMES, open_session
from hwnas.errors import ArtifactError, ConfigError

__all__ = [
    "Clock",
    "Round",
    "Stopwatch",
    "Subject",
    "TimingSettings",
    "interleave",
    "measure",
    "measure_together",
    "prepared_run",
]

Clock = Callable[[], float]
"""Gives seconds."""


@dataclass(frozen=True)
class TimingSettings:
    """How much to time.

    Attributes:
        warmup: Runs before anything counts.
        rounds: Clean rounds a network.
        round_ms: A round is as many runs as last this long, so that the clock's grain is no matter.
        max_seconds: Rounds a network take no longer than this together, but there are at least 5.
        max_wall_cpu_ratio: A round is clean if its wall time is at most this times its CPU time.
        retries: Up to this many more rounds for each one that is wanted, where some are not clean.
    """

    warmup: int = 10
    rounds: int = 50
    round_ms: float = 5.0
    max_seconds: float = 10.0
    max_wall_cpu_ratio: float = 1.3
    retries: int = 2

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warmup < 1 or self.retries < 0:
            raise ConfigError(
                f"warmup {self.warmup}, rounds {self.rounds}, retries {self.retries}: expected at "
                "least 1, 1 and 0"
            )
        if self.max_wall_cpu_ratio <= 1 or self.round_ms <= 0 or self.max_seconds <= 0:
            raise ConfigError(
                f"max_wall_cpu_ratio {self.max_wall_cpu_ratio}, round_ms {self.round_ms}, "
                f"max_seconds {self.max_seconds}: expected more than 1, 0 and 0"
            )


@dataclass(frozen=True)
class Subject:
    """What is measured: a network where it runs.

    Attributes:
        model: The ONNX file.
        target: Where to run it.
    """

    model: Path
    target: Target


@dataclass(frozen=True)
class Round:
    """Times of one run, averaged over a round, in milliseconds."""

    cpu_ms: float
    wall_ms: float

    @property
    def ratio(self) -> float:
        """Wall time over CPU time; 1 for one undisturbed thread."""
        return self.wall_ms / max(self.cpu_ms, 1e-9)


class Stopwatch:
    """Times one network, round by round. Making one warms the network up.

    Args:
        run: Runs the network once.
        settings: How much to time.
        cpu: Clock of the CPU time that the network uses.
        wall: Clock on the wall.
        one_thread: Whether one thread of the processor does all the work.
    """

    def __init__(
        self,
        run: Callable[[], object],
        settings: TimingSettings,
        cpu: Clock,
        wall: Clock = time.perf_counter,
        one_thread: bool = True,
    ) -> None:
        self._run, self._cpu, self._wall, self._one_thread = run, cpu, wall, one_thread
        self._max_ratio = settings.max_wall_cpu_ratio
        self._rounds: list[Round] = []
        for _ in range(settings.warmup):
            run()
        one_ms = max(min(self._time(1).wall_ms for _ in range(3)), 1e-6)
        self._repeats = max(1, math.ceil(settings.round_ms / one_ms))
        affordable = int(1e3 * settings.max_seconds / (self._repeats * one_ms))
        self.wanted = min(settings.rounds, max(5, affordable))

    def _time(self, repeats: int) -> Round:
        wall, cpu = self._wall(), self._cpu()
        for _ in range(repeats):
            self._run()
        cpu, wall = self._cpu() - cpu, self._wall() - wall
        return Round(1e3 * cpu / repeats, 1e3 * wall / repeats)

    def quantiles(self, clock: Literal["cpu", "wall"]) -> Quantiles:
        """Of the rounds that are wanted, those that were disturbed least."""
        best = sorted(self._rounds, key=lambda timed: timed.ratio)[: self.wanted]
        return Quantiles.of([r.cpu_ms if clock == "cpu" else r.wall_ms for r in best])

    def time_round(self) -> None:
        """Time one more round."""
        self._rounds.append(self._time(self._repeats))

    @property
    def clean(self) -> int:
        """How many rounds nothing disturbed, at most as many as are wanted."""
        ratios = [timed.ratio for timed in self._rounds]
        # Several threads add up on the CPU clock, and who waits for a graphics card idles or spins,
        # so there the best round is the norm.
        undisturbed = 1.0 if self._one_thread else min(ratios, default=1.0)
        return min(self.wanted, sum(ratio <= self._max_ratio * undisturbed for ratio in ratios))

    def may_retry(self, retries: int) -> bool:
        """Whether fewer than 1 + ``retries`` times the wanted rounds were timed."""
        return len(self._rounds) < (1 + retries) * self.wanted


def interleave(
    anchors: Sequence[Stopwatch],
    others: Sequence[Stopwatch],
    retries: int,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Time all in turn, anchors every time, until each has its clean rounds or tries run out.

    Args:
        anchors: Of the fixed network, one a target.
        others: Of the networks to be measured.
        retries: Up to this many more rounds for each one that is wanted.
        progress: Called with the share that is done, from 0 to 1.
    """
    stopwatches = [*anchors, *others]
    wanted = sum(stopwatch.wanted for stopwatch in stopwatches)
    while waiting := [s for s in stopwatches if s.clean < s.wanted and s.may_retry(retries)]:
        for stopwatch in dict.fromkeys([*anchors, *waiting]):
            stopwatch.time_round()
        if progress is not None:
            progress(sum(stopwatch.clean for stopwatch in stopwatches) / wanted)
    if progress is not None:
        progress(1.0)


def measure(
    models: Mapping[str, Path],
    target: Target,
    settings: TimingSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Measurement]:
    """Measure networks on one target, against each other.

    Args:
        models: ONNX files, each under a name of the caller's.
        target: Where to run them.
        settings: How much to time; about half a second a network if None.
        progress: Called with the share that is done, from 0 to 1.

    Returns:
        A measurement for each name.

    Raises:
        ArtifactError: A file is damaged or not what the target can run.
        DeviceError: The target cannot be used, or its device does not answer.
    """
    subjects = {name: Subject(model, target) for name, model in models.items()}
    return measure_together(subjects, settings, progress)


def measure_together(
    subjects: Mapping[str, Subject],
    settings: TimingSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Measurement]:
    """Measure networks against each other, each on its own target.

    Those on one machine take turns there. A device elsewhere is asked to do the same.

    Args:
        subjects: Files and targets, each under a name of the caller's.
        settings: How much to time; about half a second a network if None.
        progress: Called with the share that is done, from 0 to 1.

    Returns:
        A measurement for each name.

    Raises:
        ArtifactError: A file is damaged or not what its target can run.
        DeviceError: A target cannot be used, or its device does not answer.
    """
    from hwnas.deploy.agent.client import measure_elsewhere

    settings = settings or TimingSettings()
    places = list(dict.fromkeys(each.target.device.hardware for each in subjects.values()))
    found: dict[str, Measurement] = {}
    for index, place in enumerate(places):
        own = {k: s for k, s in subjects.items() if s.target.device.hardware == place}
        told = _share_of(progress, index, len(places))
        if place in HARDWARE:
            found |= _measure_here(own, settings, told)
        else:
            found |= measure_elsewhere(place, own, settings, told)
    return {name: found[name] for name in subjects}


def _share_of(
    progress: Callable[[float], None] | None, index: int, count: int
) -> Callable[[float], None] | None:
    """Progress of one of several parts as that of the whole."""
    if progress is None:
        return None
    tell = progress
    return lambda share: tell((index + share) / count)


def _measure_here(
    subjects: Mapping[str, Subject],
    settings: TimingSettings,
    progress: Callable[[float], None] | None,
) -> dict[str, Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        targets = [subject.target for subject in subjects.values()]
        anchors = _start_anchors(targets, settings, Path(folder))
        started = {name: _start(subject, settings) for name, subject in subjects.items()}
        stopwatches = [stopwatch for _, stopwatch in started.values()]
        interleave([*anchors.values()], stopwatches, settings.retries, progress)
    now = conditions()
    processors = {place: processor_of(place) for place in {t.device.hardware for t in targets}}
    time_now = datetime.now(UTC).isoformat(timespec="seconds")
    found = {}
    for name, (session, stopwatch) in started.items():
        target = subjects[name].target
        clock = _clock(target)
        found[name] = Measurement(
            target=target.name,
            clock=clock,
            cpu_ms=stopwatch.quantiles("cpu"),
            wall_ms=stopwatch.quantiles("wall"),
            n=stopwatch.wanted,
            contended=stopwatch.clean < stopwatch.wanted,
            anchor_ms=anchors[_one_image(target)].quantiles(clock).p50,
            hardware=processors[target.device.hardware],
            versions=versions(RUNTIMES[target.device.runtime].packages),
            settings=session.settings,
            time=time_now,
            conditions=now,
        )
    return found


def prepared_run(model: Path, target: Target) -> Callable[[], object]:
    """A call that runs an ONNX file once on a target of this machine, on random images."""
    session, images = _loaded(model, target)
    return lambda: session.run(images)


def _start_anchors(
    targets: Iterable[Target], settings: TimingSettings, folder: Path
) -> dict[Target, Stopwatch]:
    """The anchor on each of these targets, one image at a time."""
    model = folder / "anchor.onnx"
    with storage_errors(model):
        write_anchor(model)
    wanted = dict.fromkeys(_one_image(target) for target in targets)
    return {target: _start(Subject(model, target), settings)[1] for target in wanted}


def _one_image(target: Target) -> Target:
    return Target(replace(target.device, batch=1), target.format)


def _start(subject: Subject, settings: TimingSettings) -> tuple[Session, Stopwatch]:
    """Load a network, give it random images and warm it up."""
    session, images = _loaded(subject.model, subject.target)
    one = _clock(subject.target) == "cpu"
    return session, Stopwatch(
        lambda: session.run(images), settings, session.cpu_clock, one_thread=one
    )


def _clock(target: Target) -> Literal["cpu", "wall"]:
    """CPU time where one thread of the processor does all the work."""
    device = target.device
    return "cpu" if device.hardware == "cpu" and device.threads == 1 else "wall"


def _loaded(path: Path, target: Target) -> tuple[Session, NDArray[np.float32]]:
    session = open_session(path, target)
    shape = (target.device.batch, *session.input_shape)
    try:
        return session, np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ArtifactError(f"{path} takes inputs of shape {shape}, too large to make") from error
