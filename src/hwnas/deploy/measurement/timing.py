"""Latency measurement of networks on a target, robust against other work on the machine.

The timing of all candidates is interleaved, also with that of a fixed reference model, so that
drift affects all alike. Disturbed rounds are repeated (`hwnas.deploy.measurement.latency_timer`).
With patience, networks have to be as fast as in earlier sessions
(`hwnas.deploy.measurement.latency_history`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import storage_errors
from hwnas.deploy.bundles.checksums import sha256
from hwnas.deploy.measurement.exit_paths import mean_measurement, timed_paths
from hwnas.deploy.measurement.latency_history import LatencyHistory
from hwnas.deploy.measurement.latency_timer import LatencyTimer, TimingSettings, interleave
from hwnas.deploy.measurement.measurement import Measurement, TimedNetwork
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.deploy.runtimes import RUNTIMES, open_session
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.conditions import conditions
from hwnas.deploy.targets.machine import processor_of, versions
from hwnas.deploy.targets.target import HARDWARE, Target
from hwnas.errors import ArtifactError

__all__ = ["measure", "measure_together", "prepared_run"]


def measure(
    models: Mapping[str, Path],
    target: Target,
    settings: TimingSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Measurement]:
    """Measure networks on one target, with interleaved timing.

    Args:
        models: ONNX files, by names that the caller chooses.
        target: Target on which to run them.
        settings: Timing settings; about half a second per network if None.
        progress: Function that is called with the completed share, from 0 to 1.

    Returns:
        A measurement for each name.

    Raises:
        ArtifactError: A file is damaged or cannot run on the target.
        DeviceError: The target cannot be used, or its device does not answer.
    """
    subjects = {name: TimedNetwork(model, target) for name, model in models.items()}
    return measure_together(subjects, settings, progress)


def measure_together(
    subjects: Mapping[str, TimedNetwork],
    settings: TimingSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Measurement]:
    """Measure networks with interleaved timing, each on its own target.

    The timing is interleaved among networks on the same hardware. A remote device does the same
    with its own networks. The measurement of a network with an early exit is the mean over images
    (`hwnas.deploy.measurement.exit_paths`).

    Args:
        subjects: Files and targets, by names that the caller chooses.
        settings: Timing settings; about half a second per network if None.
        progress: Function that is called with the completed share, from 0 to 1.

    Returns:
        A measurement for each name.

    Raises:
        ArtifactError: A file is damaged or cannot run on its target.
        DeviceError: A target cannot be used, or its device does not answer.
    """
    with timed_paths(subjects) as paths:
        each = {(name, i): part for name, of in paths.items() for i, (_, part) in enumerate(of)}
        files = {f"{name}/{i}" if i else name: part for (name, i), part in each.items()}
        found = dict(zip(each, _measured(files, settings, progress).values(), strict=True))
    return {
        name: mean_measurement([(weight, found[name, i]) for i, (weight, _) in enumerate(of)])
        for name, of in paths.items()
    }


def _measured(
    subjects: Mapping[str, TimedNetwork],
    settings: TimingSettings | None,
    progress: Callable[[float], None] | None,
) -> dict[str, Measurement]:
    """Measure files with interleaved timing, each on its own target."""
    from hwnas.deploy.agent.client.client import measure_elsewhere

    settings = settings or TimingSettings()
    places = list(dict.fromkeys(each.target.device.hardware for each in subjects.values()))
    found: dict[str, Measurement] = {}
    for index, place in enumerate(places):
        own = {k: s for k, s in subjects.items() if s.target.device.hardware == place}
        report = _share_of(progress, index, len(places))
        if place in HARDWARE:
            found |= _measure_here(own, settings, report)
        else:
            found |= measure_elsewhere(place, own, settings, report)
    return {name: found[name] for name in subjects}


def _share_of(
    progress: Callable[[float], None] | None, index: int, count: int
) -> Callable[[float], None] | None:
    """Return a function that reports the progress of one of several parts as that of the whole."""
    if progress is None:
        return None
    tell = progress
    return lambda share: tell((index + share) / count)


def _measure_here(
    subjects: Mapping[str, TimedNetwork],
    settings: TimingSettings,
    progress: Callable[[float], None] | None,
) -> dict[str, Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        targets = [subject.target for subject in subjects.values()]
        references = _start_references(targets, settings, Path(folder))
        lasting = {n: _lasting_name(s) for n, s in subjects.items() if settings.patience_s}
        known = LatencyHistory()
        started = {
            name: _start(
                subject,
                settings,
                references[_one_image(subject.target)],
                known.usual_ms(lasting[name]) if lasting else None,
            )
            for name, subject in subjects.items()
        }
        timers = [timer for _, timer in started.values()]
        interleave([], timers, settings.retries, progress, settings.patience_s)
        if lasting:
            known.remember({lasting[n]: watch.quick_ms for n, (_, watch) in started.items()})
    now = conditions()
    processors = {place: processor_of(place) for place in {t.device.hardware for t in targets}}
    time_now = datetime.now(UTC).isoformat(timespec="seconds")
    found = {}
    for name, (session, timer) in started.items():
        target = subjects[name].target
        clock = _clock(target)
        found[name] = Measurement(
            target=target.name,
            clock=clock,
            cpu_ms=timer.quantiles("cpu"),
            wall_ms=timer.quantiles("wall"),
            n=timer.wanted,
            contended=timer.clean < timer.wanted,
            anchor_ms=timer.anchor_ms,
            hardware=processors[target.device.hardware],
            versions=versions(RUNTIMES[target.device.runtime].packages),
            settings=session.settings,
            time=time_now,
            conditions=now,
        )
    return found


def prepared_run(model: Path, target: Target) -> Callable[[], object]:
    """Return a function that runs an ONNX file once on this machine, on random images.

    Args:
        model: ONNX file.
        target: Target of this machine on which to run it.
    """
    session, images = _loaded(model, target)
    return lambda: session.run(images)


def _start_references(
    targets: Iterable[Target], settings: TimingSettings, folder: Path
) -> dict[Target, LatencyTimer]:
    """Return timers of the reference model on each of these targets, at one image."""
    model = folder / "reference.onnx"
    with storage_errors(model):
        write_reference_model(model)
    wanted = dict.fromkeys(_one_image(target) for target in targets)
    brief = replace(settings, round_ms=settings.round_ms / 4)
    return {target: _start(TimedNetwork(model, target), brief)[1] for target in wanted}


def _lasting_name(subject: TimedNetwork) -> str:
    """Return the name of a network on a target in the latency history.

    Times are comparable only if file content, target, processor and versions of the runtime are the
    same, so the name includes all of them.
    """
    target = subject.target
    runtime = versions(RUNTIMES[target.device.runtime].packages)
    installed = ", ".join(f"{name} {version}" for name, version in runtime.items())
    where = f"{target.name} on {processor_of(target.device.hardware)}, {installed}"
    return f"{sha256(subject.model)[:16]}, {where}"


def _one_image(target: Target) -> Target:
    return Target(replace(target.device, batch=1), target.format)


def _start(
    subject: TimedNetwork,
    settings: TimingSettings,
    reference: LatencyTimer | None = None,
    usual_ms: float | None = None,
) -> tuple[Session, LatencyTimer]:
    """Load a network, give it random images and warm it up."""
    session, images = _loaded(subject.model, subject.target)
    return session, LatencyTimer(
        lambda: session.run(images),
        settings,
        session.cpu_clock,
        one_thread=_clock(subject.target) == "cpu",
        reference=reference,
        usual_ms=usual_ms,
    )


def _clock(target: Target) -> Literal["cpu", "wall"]:
    """Return ``"cpu"`` if one thread of the processor does all the work, otherwise ``"wall"``."""
    device = target.device
    return "cpu" if device.hardware == "cpu" and device.threads == 1 else "wall"


def _loaded(path: Path, target: Target) -> tuple[Session, NDArray[np.float32]]:
    session = open_session(path, target)
    shape = (target.device.batch, *session.input_shape)
    try:
        return session, np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ArtifactError(
            f"{path} takes inputs of shape {shape}, which are too large for this machine"
        ) from error
