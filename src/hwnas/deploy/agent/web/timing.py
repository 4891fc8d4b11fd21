"""Timing of networks in a browser: the page runs them, and this machine decides what to time.

The page only loads networks and runs one of them some times. Rounds, their order, the reference
model and the detection of disturbed rounds are those of every other target
(`hwnas.deploy.measurement.latency_timer`). A browser shows no CPU time, so only the wall clock
counts. Its clock is coarse; rounds are long enough that its grain is at most 2 % of a round, and
the grain widens the reported quantiles.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hwnas.deploy.agent.measuring_job import JobState, MeasuringJob, MeasuringRequest
from hwnas.deploy.agent.server.model_store import ModelStore
from hwnas.deploy.agent.signing import digest_of
from hwnas.deploy.agent.web.browser import BrowserFacts
from hwnas.deploy.agent.web.channel import Channel, Closed, Replaced
from hwnas.deploy.measurement.latency_timer import (
    LatencyTimer,
    TimingRound,
    TimingSettings,
    interleave,
)
from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError, DeviceError

__all__ = ["BrowserTimer", "BrowserTiming"]

_GRAIN_SHARE = 0.02  # largest share of a round that the grain of the clock may be
_MOST_VISITS = 20  # pages opened during one job
_MOST_HIDDEN = 1000
_LEAST_GRAINS = 10  # of the clock, in the time of some runs
_MOST_REPEATS = 2**16


@dataclass
class _Engine:
    """Worker of a page with a runtime and a number of threads.

    Attributes:
        name: Name in commands.
        version: Version of ONNX Runtime Web.
        grain_ms: Smallest step of the worker's clock.
        threads: Threads that it really has.
    """

    name: str
    version: str
    grain_ms: float
    threads: int


@dataclass
class _Loaded:
    """Network that a page has loaded, with how long its first steps took."""

    engine: _Engine
    key: str
    load_ms: float
    first_ms: float


class BrowserTimer(LatencyTimer):
    """Timer of a network in a browser, whose rounds are timed there.

    Args:
        run: Function of a number of runs that returns their total time in milliseconds.
        settings: Timing settings.
        reference: Timer of the reference model.
    """

    def __init__(
        self,
        run: Callable[[int], float],
        settings: TimingSettings,
        reference: BrowserTimer | None = None,
    ) -> None:
        self._run_there = run
        super().__init__(
            lambda: run(1), settings, cpu=lambda: 0.0, one_thread=False, reference=reference
        )

    def _time(self, repeats: int) -> TimingRound:
        each = self._run_there(repeats) / repeats
        return TimingRound(each, each)

    @property
    def repeats(self) -> int:
        """Number of runs in a round."""
        return self._repeats


@dataclass
class BrowserTiming:
    """Runner of the jobs of one browser.

    Attributes:
        channel: Channel to the page.
        models: Store of the models of the device.
        facts: Function that returns what the page says of its browser.
        processor: Name of the processor in measurements.
        allowed: Models that the page may load now.
    """

    channel: Channel
    models: ModelStore
    facts: Callable[[], BrowserFacts]
    processor: str
    seconds: float = 120.0
    allowed: set[str] = field(default_factory=set)

    def __call__(
        self, job: MeasuringJob, progress: Callable[[float], None], stop: threading.Event
    ) -> JobState | None:
        """Do a job, and return its final state; None if it was stopped.

        A job starts again when the page is opened again in between.
        """
        for _ in range(_MOST_VISITS):
            try:
                return self._attempt(job, progress, stop)
            except Replaced:
                continue
            except Closed:
                return None
        raise DeviceError(f"the page was opened {_MOST_VISITS} times during the job")

    def reference(self) -> str:
        """Return the reference model's digest, after storing it among the models."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "reference.onnx"
            write_reference_model(path)
            content = path.read_bytes()
        digest = digest_of(content)
        if digest not in self.models:
            position = 0

            def read(count: int) -> bytes:
                nonlocal position
                part = content[position : position + count]
                position += len(part)
                return part

            self.models.receive(digest, len(content), read, set())
        return digest

    def _attempt(
        self, job: MeasuringJob, progress: Callable[[float], None], stop: threading.Event
    ) -> JobState:
        self.channel.wait_for_page(stop)
        reference = self.reference()
        self.allowed = {*job.models, reference}
        page = _Page(self.channel, stop, self.seconds)
        try:
            page.ask({"do": "reset"})
            return JobState("done", measurements=self._measured(job, reference, page, progress))
        finally:
            self.allowed = set()

    def _measured(
        self, job: MeasuringJob, reference: str, page: _Page, progress: Callable[[float], None]
    ) -> dict[str, Measurement]:
        engines: dict[tuple[str, int], _Engine] = {}
        references: dict[Target, BrowserTimer] = {}
        loaded: dict[str, _Loaded] = {}
        timers: dict[str, BrowserTimer] = {}
        targets = {name: Target.parse(asked.target) for name, asked in job.subjects.items()}
        shapes = {model: self._shape(model) for model in {*job.models, reference}}

        def load(asked: MeasuringRequest, key: str) -> _Loaded:
            device = Target.parse(asked.target).device
            place = device.runtime, device.threads
            if place not in engines:
                engines[place] = page.open(*place)
            return page.load(engines[place], asked.model, key, (device.batch, *shapes[asked.model]))

        for number, (name, asked) in enumerate(job.subjects.items()):
            target = targets[name]
            one = Target(replace(target.device, batch=1), target.format)
            if one not in references:
                key = f"reference{len(references)}"
                beside = load(MeasuringRequest(reference, one.name), key)
                brief = _settings(job.settings, beside.engine.grain_ms, 0.25)
                references[one] = BrowserTimer(page.runner(beside), brief)
            loaded[name] = load(asked, f"network{number}")
            settings = _settings(job.settings, loaded[name].engine.grain_ms)
            timers[name] = BrowserTimer(page.runner(loaded[name]), settings, references[one])
            progress(0.1 * (number + 1) / len(job.subjects))
        given = job.settings
        interleave(
            *([], list(timers.values()), given.retries),
            lambda share: progress(0.1 + 0.9 * share),
            given.patience_s,
        )
        facts, now = self.facts(), datetime.now(UTC).isoformat(timespec="seconds")
        return {
            name: self._measurement(targets[name], timers[name], loaded[name], facts, now)
            for name in job.subjects
        }

    def _measurement(
        self, target: Target, timer: BrowserTimer, loaded: _Loaded, facts: BrowserFacts, now: str
    ) -> Measurement:
        engine = loaded.engine
        times = _widened(timer.quantiles("wall"), engine.grain_ms / timer.repeats)
        return Measurement(
            target=target.name,
            clock="wall",
            cpu_ms=times,
            wall_ms=times,
            n=timer.wanted,
            contended=timer.clean < timer.wanted,
            anchor_ms=timer.anchor_ms,
            hardware=self.processor,
            versions={"onnxruntime-web": engine.version, "browser": facts.browser},
            settings={"threads": str(engine.threads)},
            time=now,
            conditions={
                "clock_grain_ms": f"{engine.grain_ms:.4g}",
                "load_ms": f"{loaded.load_ms:.4g}",
                "first_run_ms": f"{loaded.first_ms:.4g}",
            },
        )

    def _shape(self, model: str) -> tuple[int, ...]:
        """Return the sizes of a model's input without the batch.

        Raises:
            ArtifactError: The model is damaged, or its sizes are not fixed.
        """
        import onnx

        try:
            graph = onnx.load(self.models.path(model), load_external_data=False).graph
            known = {each.name for each in graph.initializer}
            first = next(each for each in graph.input if each.name not in known)
            sizes = [d.dim_value for d in first.type.tensor_type.shape.dim][1:]
        except Exception as error:  # protobuf's errors have no other common base class
            raise ArtifactError(f"{model}.onnx is not an ONNX file: {error}") from error
        if not all(size > 0 for size in sizes):
            raise ArtifactError(f"{model}.onnx has an input of unknown size")
        return tuple(sizes)


@dataclass
class _Page:
    """Page as seen by one attempt at a job."""

    channel: Channel
    stop: threading.Event
    seconds: float

    def ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have the page do a command.

        Raises:
            ArtifactError: The page cannot do it.
        """
        found = self.channel.send(command, self.stop, self.seconds)
        if "error" in found:
            raise ArtifactError(" ".join(str(found["error"]).split())[:500])
        return found

    def open(self, runtime: str, threads: int) -> _Engine:
        """Open a worker with a runtime.

        Raises:
            DeviceError: The browser has no such runtime, or too few threads.
        """
        name = f"{runtime}-{threads}"
        try:
            found = self.ask({"do": "open", "engine": name, "runtime": runtime, "threads": threads})
        except ArtifactError as error:
            raise DeviceError(f"the browser cannot run {runtime}: {error}") from error
        grain = min(max(_number(found, "grain_ms"), 1e-6), 1000.0)
        got = int(_number(found, "threads"))
        if got != threads:
            raise DeviceError(
                f"the browser gives {got} threads, not {threads}; threads need a page over HTTPS, "
                "or on this machine"
            )
        return _Engine(name, str(found.get("version", ""))[:40], grain, got)

    def load(self, engine: _Engine, model: str, key: str, shape: tuple[int, ...]) -> _Loaded:
        """Load a network, and run it for the first time."""
        command = {"do": "load", "engine": engine.name, "model": model, "key": key}
        try:
            found = self.ask({**command, "shape": list(shape)})
        except ArtifactError as error:
            raise ArtifactError(f"{model}.onnx cannot run in the browser: {error}") from error
        return _Loaded(engine, key, _number(found, "load_ms"), _number(found, "first_ms"))

    def runner(self, loaded: _Loaded) -> Callable[[int], float]:
        """Return the function that runs a loaded network some times, in milliseconds.

        Runs during which the page was hidden are repeated, since browsers slow hidden pages. Fewer
        runs than the clock can resolve are replaced by more of them.
        """
        command = {"do": "run", "engine": loaded.engine.name, "key": loaded.key}

        def visible(repeats: int) -> float:
            for _ in range(_MOST_HIDDEN):
                found = self.ask({**command, "repeats": repeats})
                if found.get("hidden") is not True:
                    return _number(found, "ms")
            raise DeviceError("the page stays hidden; keep it visible while it measures")

        def run(repeats: int) -> float:
            more, ms = repeats, visible(repeats)
            while ms < _LEAST_GRAINS * loaded.engine.grain_ms and more < _MOST_REPEATS:
                more *= 2
                ms = visible(more)
            return max(ms * repeats / more, 1e-6)

        return run


def _settings(given: TimingSettings, grain_ms: float, share: float = 1.0) -> TimingSettings:
    """Return settings whose rounds are long enough for a clock with a grain."""
    return replace(given, round_ms=max(share * given.round_ms, grain_ms / _GRAIN_SHARE))


def _widened(found: Quantiles, grain_ms: float) -> Quantiles:
    """Return quantiles that count in the grain of the clock."""
    p95 = None if found.p95 is None else found.p95 + grain_ms
    return Quantiles(max(0.0, found.p20 - grain_ms), found.p50, found.p80 + grain_ms, p95)


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DeviceError(f"the page answered {name} = {value!r}; expected a number")
    return float(value)
