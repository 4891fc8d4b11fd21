"""Calibration of a target: measure a few networks, and fit the predictor of all others.

This stage reuses what a store has; `hwnas.predictors.devices.calibration` exports and measures.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.machine import processor_of, versions
from hwnas.deploy.targets.target import Target
from hwnas.errors import DeviceError, InfeasibleError
from hwnas.hashing import content_hash
from hwnas.identity import Identity
from hwnas.predictors import CostSource, DeviceProfile, DeviceStore
from hwnas.predictors.devices.calibration import CalibrationOptions, ExportOne
from hwnas.predictors.devices.device import MINIMUM_MEASUREMENTS
from hwnas.predictors.metrics.device_metric import (
    DEVICE_METRICS,
    CalibratedPredictor,
    DeviceMetric,
    Profile,
)
from hwnas.progress import ProgressCallback
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.engine.shared_values import agreed_value
from hwnas.search.objectives.candidate_costs import CandidateCosts, predict_costs
from hwnas.search.objectives.objective import LATENCY, Objective, label_on, stored_label
from hwnas.search_spaces import Architecture, Candidate, SearchSpace
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage
from hwnas.stages.measurements import MEASUREMENTS, Timed, measured_on, read_measurements
from hwnas.stages.untrained_costs import limited

__all__ = ["calibrated", "calibration", "check_limits", "fitted_predictor", "store_of"]

_NETWORKS_TO_CHECK = 200
_ENOUGH = 100  # networks in the user's store, from which on runs add no more
_SURE = 0.95  # level of the prediction interval whose lower end `check_limits` compares


def store_of(out: Path) -> DeviceStore:
    """Return the store of the calibrations of a run or of one of its targets.

    Args:
        out: Folder of the results.
    """
    return DeviceStore(out / "devices")


def calibration(job: Job, metric: str, target: str, out: Path) -> RunStage:
    """Return the stage that measures networks on the target, for the predictor of a metric.

    Measurements of the same hardware in the user's store count, and new ones are added to it,
    unless the recipe says ``predictor.reuse = false``. Searches that share a study also share their
    calibrations: those on equal processors use the measurements of the first of them, so that all
    have the same predictions.

    Args:
        job: Run that is being worked on.
        metric: Name of one of `DEVICE_METRICS`.
        target: Name of the target.
        out: Folder of the results.
    """
    how, name = DEVICE_METRICS[metric], stored_label(label_on(metric, target))
    space, storage = job.run_inputs.space, job.recipe.search.storage
    hardware = processor_of(Target.parse(target).device.hardware)
    about = {} if name == target else {"metric": metric}
    identity = job.identity(
        "calibrate", space=space.fingerprint, target=target, hardware=hardware, **about
    )
    shared = f"{job.recipe.name}/calibration {identity.key}"
    if storage is not None:
        identity = Identity({**identity.inputs, "shared": content_hash(storage)})

    def work(advance: ProgressCallback) -> None:
        before = [each for each in _hardware(how, target, out) if each not in ("", hardware)]
        if before:
            job.reporter.note(
                f"{target} was calibrated on {', '.join(before)}, but the hardware is now "
                f"{hardware}: all networks are measured again"
            )
        offer = None if storage is None else agreed_value(storage, shared)
        if offer is None:
            found = _calibrated(job, how, target, out, advance)
            if storage is not None:
                offer = agreed_value(storage, shared, found.to_json())
        if offer is not None:
            how.save(store_of(out), how.profile(offer))

    def made() -> bool:
        return len(_hardware(how, target, out)) == 1

    def adopt() -> Identity | None:
        found = _hardware(how, target, out)
        return Identity({**identity.inputs, "hardware": ", ".join(found)}) if found else None

    return RunStage(f"calibrate@{name}", identity, work, made, adopt)


def _calibrated(
    job: Job, metric: DeviceMetric, target: str, out: Path, advance: ProgressCallback
) -> Profile:
    """Measure networks that neither the run nor the user's store knows, and store them in both."""
    store, users, wanted = store_of(out), DeviceStore.default(), job.recipe.predictor.networks
    parsed, reuse = Target.parse(target), job.recipe.predictor.reuse
    for each in (store, users) if reuse else ():
        if metric.has(each, target) and _fits(profile := metric.load(each, target), parsed):
            metric.save(store, profile)
            break
    else:
        metric.remove(store, target)
    before = len(metric.load(store, target).networks) if metric.has(store, target) else 0

    def export(
        one: ExportOne, space: SearchSpace, networks: Sequence[tuple[Architecture, Path]]
    ) -> Iterable[object]:
        return map_tasks(one, space, networks, job.recipe.workers)

    options = CalibrationOptions(wanted, block=wanted, advance=advance, export=export)
    try:
        metric.calibrate(parsed, job.run_inputs.space, store, options)
    except DeviceError as error:
        if before < MINIMUM_MEASUREMENTS:
            raise
        job.reporter.note(f"{metric.noun} is predicted from {before} stored networks: {error}")
    found = metric.load(store, target)
    if before:
        job.reporter.note(
            f"{before} of {len(found.networks)} networks of the predictor of {metric.noun} on "
            f"{target} were measured before; predictor.reuse = false measures all again"
        )
    if found.contended:
        job.reporter.note(
            f"{found.contended} of {len(found.networks)} timings were disturbed by other processes "
            "on this machine; close other programs for better predictions"
        )
    known = metric.load(users, target).networks if metric.has(users, target) else ()
    if reuse and len(known) < _ENOUGH and set(known) <= set(found.networks):
        metric.save(users, found)
    return found


def _fits(profile: Profile, target: Target) -> bool:
    """Return whether costs were measured on the current hardware, with the current packages.

    A table from elsewhere, which states neither, fits.
    """
    if profile.hardware not in ("", processor_of(target.device.hardware)):
        return False
    if not profile.versions or not target.device.is_here:  # another machine has its own packages
        return True
    return profile.versions == versions(RUNTIMES[target.device.runtime].packages)


def calibrated(space: SearchSpace, metric: str, target: str, out: Path) -> Profile:
    """Return the networks of a run that were measured on a target.

    Runs of hwnas 0.1 have the timings of their calibrations in the table of all measurements.
    """
    how, store = DEVICE_METRICS[metric], store_of(out)
    rows = _timed(target, out)
    if metric != LATENCY or how.has(store, target) or not rows:
        return how.load(store, target)
    return DeviceProfile(
        target,
        networks=tuple(row.architecture.id for row in rows),
        steps=space.operator_counts([row.architecture for row in rows]),
        costs=np.array([row.measurement.latency_ms for row in rows]),
        reference_ms=median(row.measurement.anchor_ms for row in rows),
        contended=sum(row.measurement.contended for row in rows),
    )


def fitted_predictor(
    space: SearchSpace, metric: str, target: str, out: Path
) -> CalibratedPredictor:
    """Return the predictor fitted to the calibration of a target; arguments as in `calibrated`."""
    return DEVICE_METRICS[metric].predictor(calibrated(space, metric, target, out))


def _hardware(metric: DeviceMetric, target: str, out: Path) -> list[str]:
    """Return the processors that the calibration of a target was measured on."""
    if metric.has(store_of(out), target):
        return [metric.load(store_of(out), target).hardware]
    return measured_on(_timed(target, out)) if metric.name == LATENCY else []


def _timed(target: str, out: Path) -> list[Timed]:
    rows = read_measurements(out / MEASUREMENTS)
    return [r for r in rows if r.role == "calibration" and r.measurement.target == target]


def check_limits(job: Job, goal: SearchGoal, predictors: Mapping[str, CostSource]) -> None:
    """Raise if no network of the space can meet a limit, before hours of training.

    Raises:
        InfeasibleError: The smallest network and a random sample all violate a limit, even at the
            lower end of the 95 % interval of their predictions; counted costs are exact.
    """
    space, rng = job.run_inputs.space, random.Random(job.recipe.seed)
    costly = limited(goal.objectives)
    if not costly:
        return

    def costs_of(drawn: Sequence[Architecture]) -> list[CandidateCosts]:
        candidates = [Candidate.of(architecture) for architecture in drawn]
        return predict_costs(space, candidates, costly, predictors)

    costs = costs_of([space.smallest()])
    missed = [objective for objective in costly if _all_miss(objective, costs)]
    if not missed:  # the usual case, and others take long to count
        return
    costs += costs_of([space.sample(rng) for _ in range(_NETWORKS_TO_CHECK)])
    for objective in missed:
        if _all_miss(objective, costs):
            lowest, _ = min(_least(objective, each) for each in costs)
            assert objective.limit is not None
            raise InfeasibleError(
                f"no network of the space has {objective.label} of at most "
                f"{_number(objective.limit)}; the lowest that was found is {_number(lowest)}. "
                "Raise the limit, or allow smaller networks in [space]"
            )


def _all_miss(objective: Objective, costs: Sequence[CandidateCosts]) -> bool:
    """Return whether all networks violate a limit, even at the lower ends of their intervals."""
    assert objective.limit is not None
    return all(_least(objective, each)[1] > objective.limit for each in costs)


def _least(objective: Objective, costs: CandidateCosts) -> tuple[float, float]:
    """Return a cost and the lower end of its interval; counted costs are exact."""
    if objective.label not in costs.estimates:
        return (costs.values[objective.label],) * 2
    estimate = costs.estimates[objective.label]
    return estimate.mean, estimate.interval(_SURE).low


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
