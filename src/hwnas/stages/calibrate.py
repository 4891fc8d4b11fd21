"""Calibration of a target: measure a few networks, and fit the predictor of all others."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hwnas.content import content_hash
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.catalogue import processor_of
from hwnas.deploy.targets.device import Target
from hwnas.errors import InfeasibleError
from hwnas.identity import Identity
from hwnas.predictors import DevicePredictor, Pool, shipped_experience
from hwnas.progress import ProgressCallback
from hwnas.search.engine.agreement import agreed_value
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.objectives.objective import COUNTED, LATENCY, Objective
from hwnas.search_spaces import Architecture, SearchSpace
from hwnas.stages.job import Job, RunStage, SearchGoal
from hwnas.stages.measurements import (
    Timed,
    measured_on,
    read_measurements,
    write_measurements,
)
from hwnas.stages.untrained import export_untrained, limited

__all__ = ["calibration", "check_limits", "fitted_predictor", "networks_to_time"]

_NETWORKS_TO_CHECK = 200
_EXPORT_SHARE = 0.8
_SURE = 0.95  # level of the prediction interval whose lower end `check_limits` compares


def calibration(job: Job, target: str, path: Path) -> RunStage:
    """Return the stage that measures networks on the target and writes the results to ``path``.

    Searches that share a study also share their calibrations: those on equal processors use the
    measurements of the first of them, so that all have the same predictions.
    """
    space, storage = job.run_inputs.space, job.recipe.search.storage
    hardware = processor_of(Target.parse(target).device.hardware)
    identity = job.identity("calibrate", space=space.fingerprint, target=target, hardware=hardware)
    shared = f"{job.recipe.name}/calibration {identity.key}"
    if storage is not None:
        identity = Identity({**identity.inputs, "shared": content_hash(storage)})

    def work(advance: ProgressCallback) -> None:
        before = [each for each in measured_on(_timed(target, path)) if each != hardware]
        if before:
            job.reporter.note(
                f"{target} was calibrated on {', '.join(before)}, but the hardware is now "
                f"{hardware}: all networks are timed again"
            )
        offers = None if storage is None else agreed_value(storage, shared)
        if offers is None:
            timed = _time_networks(job, target, advance)
            if storage is not None:
                offers = agreed_value(storage, shared, [row.to_json() for row in timed])
        if offers is not None:
            timed = [Timed.from_json(row) for row in offers]
        kept = [r for r in read_measurements(path) if r not in _timed(target, path)]
        write_measurements(path, [*kept, *timed], anew=True)

    def made() -> bool:
        return len(measured_on(_timed(target, path))) == 1

    def adopt() -> Identity | None:
        found = measured_on(_timed(target, path))
        return Identity({**identity.inputs, "hardware": ", ".join(found)}) if found else None

    return RunStage(f"calibrate@{target}", identity, work, made, adopt)


def _time_networks(job: Job, target: str, advance: ProgressCallback) -> list[Timed]:
    """Choose, export and measure networks."""
    space, recipe = job.run_inputs.space, job.recipe
    chosen = networks_to_time(space, target, recipe.predictor.networks, recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        models = {a.id: Path(folder, f"{a.id}.onnx") for a in chosen}
        jobs = [(a, models[a.id]) for a in chosen]
        for done, _ in enumerate(map_tasks(export_untrained, space, jobs, recipe.workers), start=1):
            advance(_EXPORT_SHARE * done / len(jobs), f"exporting network {done}/{len(jobs)}")
        measured = measure(
            models,
            Target.parse(target),
            progress=lambda s: advance(_EXPORT_SHARE + (1 - _EXPORT_SHARE) * s, "timing"),
        )
    contended = sum(m.contended for m in measured.values())
    if contended:
        job.reporter.note(
            f"{contended} of {len(chosen)} timings were disturbed by other processes on this "
            "machine; close other programs for better predictions"
        )
    return [Timed(a, "calibration", measured[a.id]) for a in chosen]


def networks_to_time(space: SearchSpace, target: str, count: int, seed: int) -> list[Architecture]:
    """Return the networks that are most informative about a target without measurements."""
    pool = Pool.of(space, seed)
    chosen = pool.most_informative(DevicePredictor(target, shipped_experience()), count)
    return [pool.networks[i] for i in chosen]


def fitted_predictor(space: SearchSpace, target: str, path: Path) -> DevicePredictor:
    """Return the predictor fitted to the calibration of a target."""
    timed = _timed(target, path)
    return DevicePredictor(target, shipped_experience()).adapt(
        [space.workload(row.architecture) for row in timed],
        [row.measurement.latency_ms for row in timed],
    )


def _timed(target: str, path: Path) -> list[Timed]:
    rows = read_measurements(path)
    return [r for r in rows if r.role == "calibration" and r.measurement.target == target]


def check_limits(job: Job, goal: SearchGoal, predictors: Mapping[str, DevicePredictor]) -> None:
    """Raise if no network of the space can keep a limit, before hours of training.

    Raises:
        InfeasibleError: The smallest network and a random sample all miss a limit, even at the
            lower end of the 95 % interval of their predictions; counted costs are exact.
    """
    space = job.run_inputs.space
    rng = random.Random(job.recipe.seed)
    drawn = [space.smallest(), *(space.sample(rng) for _ in range(_NETWORKS_TO_CHECK))]
    costly = limited(goal.objectives)
    workloads = [space.workload(architecture) for architecture in drawn] if costly else []
    for objective in costly:
        if objective.metric == LATENCY:
            found = [predictors[target].predict(workloads) for target in objective.priced_on]
            rows = [
                dict(zip(objective.priced_on, row, strict=True)) for row in zip(*found, strict=True)
            ]
            estimates = [objective.estimate(row) for row in rows]
            _check_limit(objective, [(e.mean, e.interval(_SURE).low) for e in estimates])
        else:
            counts = [float(COUNTED[objective.metric](w)) for w in workloads]
            _check_limit(objective, [(count, count) for count in counts])


def _check_limit(objective: Objective, costs: Sequence[tuple[float, float]]) -> None:
    """Raise if every network misses a limit, given mean and lower bound of its cost."""
    assert objective.limit is not None
    if all(lower > objective.limit for _, lower in costs):
        raise InfeasibleError(
            f"no network of the space has {objective.label} of at most {_number(objective.limit)}; "
            f"the lowest that was found is {_number(min(costs)[0])}. Raise the limit, or allow "
            "smaller networks in [space]"
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
