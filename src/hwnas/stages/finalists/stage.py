"""Finalists of a run: fine-tuned, tested, exported, measured and packaged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from hwnas.atomic import replacing_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.measurement.measured_cost import MeasuredCost
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.machine import processor_of
from hwnas.deploy.targets.target import Target
from hwnas.errors import DeviceError, HwnasError
from hwnas.identity import Identity
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.progress import ProgressCallback
from hwnas.search import Scored, SearchResult
from hwnas.search.evaluation.evaluate import weights_hash
from hwnas.search.objectives.objective import LATENCY
from hwnas.search.training import load_weights, save_weights
from hwnas.search_spaces import Candidate
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.finalists.failures import Failures
from hwnas.stages.finalists.fine_tuning import (
    fine_tune,
    inherited_weights,
    tuned_identity,
    weights_path,
)
from hwnas.stages.finalists.limits import of_bundle
from hwnas.stages.finalists.packing import export_finalist, pack
from hwnas.stages.finalists.shortlist import Made, choose, fill_shortlist, is_own_fault, read_tried
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage
from hwnas.stages.measurements import Timed, measured_on, read_measurements, write_measurements

__all__ = ["bundle_trained", "finalising", "make_bundles"]


def finalising(
    job: Job, goal: SearchGoal, result: SearchResult, weights: Mapping[str, Tensor] | None
) -> RunStage:
    """Return the stage that makes a verified bundle of each finalist."""
    recipe, out = job.recipe, job.folder.output(goal.target)
    table = out / "measurements.parquet"
    first = choose(result, recipe.deploy.top)
    ids = [trial.candidate.id for trial in first]
    processors = [processor_of(Target.parse(target).device.hardware) for target in goal.targets]
    identity = job.identity(
        "finalists",
        **job.learned,
        weights="none" if weights is None else weights_hash(weights),
        training=job.training.key,
        candidates=ids,
        hardware=", ".join(sorted(set(processors))),
        limits=_limits(goal),
        **_formats(goal),
    )

    def work(advance: ProgressCallback) -> None:
        with replacing_folder(out / "bundles") as folder:
            timed: list[Timed] = []
            make = _maker(job, goal, weights, folder, timed, advance)
            deploy, note = recipe.deploy, job.reporter.note
            rounds = deploy.replacements
            shortlist = fill_shortlist(result, deploy.top, make, note, rounds, deploy.spare)
            for each in shortlist.tried:
                if not each.packed:
                    shutil.rmtree(folder / each.id, ignore_errors=True)
            write_measurements(table, "finalist", timed)
            shortlist.write(out)

    def made() -> bool:
        wanted = {each.id for each in read_tried(out) if each.packed} or set(ids)
        timed = {row.architecture.id for row in read_measurements(table) if row.role == "finalist"}
        packed = read_bundles(out / "bundles").keys()
        networks = {t.candidate.network.id for t in result.trials if t.candidate.id in wanted}
        return packed >= wanted and (timed >= networks or not goal.targets)

    def adopt() -> Identity | None:
        for trial in first:
            path = weights_path(job, trial.candidate)
            if path.exists():
                inherited = inherited_weights(job, trial.candidate, weights)
                wanted = tuned_identity(job.run_inputs, trial.candidate, inherited)
                save_weights(path, load_weights(path), wanted.key)
        rows = [row for row in read_measurements(table) if row.role == "finalist"]
        return Identity({**identity.inputs, "hardware": ", ".join(measured_on(rows))})

    continued = ("candidates", "limits")
    return RunStage(goal.stage("finalists"), identity, work, made, adopt, continued)


def _formats(goal: SearchGoal) -> dict[str, str]:
    """Return the number formats as an input of the stage; runs in fp32 have none."""
    formats = ", ".join(goal.number_formats)
    return {} if formats == "fp32" else {"number_format": formats}


def _limits(goal: SearchGoal) -> list[tuple[str, float]]:
    """Return the limits by label, since they decide which finalists are replaced."""
    return [(o.label, o.limit) for o in goal.objectives if o.limit is not None]


def _maker(
    job: Job,
    goal: SearchGoal,
    weights: Mapping[str, Tensor] | None,
    folder: Path,
    timed: list[Timed],
    advance: ProgressCallback,
) -> Callable[[Sequence[Scored]], Made]:
    """Return a function that makes candidates into finalists and adds timings to ``timed``."""

    def make(trials: Sequence[Scored]) -> Made:
        failed: dict[str, HwnasError] = {}
        measured = make_bundles(job, goal, trials, weights, folder, advance, failed)
        networks = {trial.candidate.id: trial.candidate.network for trial in trials}
        timed.extend(
            Timed(networks[name], "finalist", m) for name, found in measured.items() for m in found
        )
        bundles = {name: Bundle.load(folder / name) for name in measured}
        return {**{n: of_bundle(b, goal.objectives) for n, b in bundles.items()}, **failed}

    return make


def make_bundles(
    job: Job,
    goal: SearchGoal,
    trials: Sequence[Scored],
    weights: Mapping[str, Tensor] | None,
    folder: Path,
    advance: ProgressCallback,
    failed: dict[str, HwnasError] | None = None,
) -> dict[str, list[Measurement]]:
    """Fine-tune, test, export, measure and package candidates, each into a folder named by its id.

    Args:
        job: Run of the candidates.
        goal: Goal of the run that the candidates belong to.
        trials: Trials of the candidates.
        weights: Weights of the supernet, if there is one.
        folder: Folder of the bundles.
        advance: Callback for the progress.
        failed: Dictionary that receives the error of a candidate that cannot be made, by its id; if
            None, the error is raised.

    Returns:
        Measurements of each network on every target of the goal in its number format, by id.
    """
    failures = Failures(failed)
    tuned = fine_tune(job, trials, weights, advance, failures)
    return bundle_trained(job, goal, trials, tuned, folder, advance, failures)


def bundle_trained(
    job: Job,
    goal: SearchGoal,
    trials: Sequence[Scored],
    tuned: Mapping[str, list[Path]],
    folder: Path,
    advance: ProgressCallback,
    failures: Failures | None = None,
) -> dict[str, list[Measurement]]:
    """Test, export, measure and package candidates whose weights are ready.

    Args:
        job: See `make_bundles`.
        goal: See `make_bundles`.
        trials: See `make_bundles`.
        tuned: Files with the weights of each candidate, one for each fine-tuning, by its id;
            candidates without one are left out.
        folder: See `make_bundles`.
        advance: See `make_bundles`.
        failures: Receives the errors of candidates; if None, they are raised.

    Returns:
        See `make_bundles`.
    """
    failures = failures or Failures(None)
    with tempfile.TemporaryDirectory() as temporary:
        files = {}
        for done, trial in enumerate(trials):
            name = trial.candidate.id
            if name not in tuned:
                continue
            advance(0.5 + 0.3 * done / len(trials), f"exporting {name}")
            with failures.of(name):
                files[name] = export_finalist(
                    job.run_inputs, goal, trial, tuned[name], Path(temporary)
                )
        advance(0.8, "timing")
        models = {
            t.candidate: files[t.candidate.id].shipped for t in trials if t.candidate.id in files
        }
        measured = _measure_able(goal, models, failures)
        costs = _other_costs(job, goal, {c: models[c] for c in models if c.id in measured})
        for trial in trials:
            name = trial.candidate.id
            if name not in measured:
                continue
            with failures.of(name):
                pack(job, goal, trial, files[name], measured[name], costs[name], folder)
    return {name: found for name, found in measured.items() if name not in failures}


def _measure_able(
    goal: SearchGoal, models: Mapping[Candidate, Path], failures: Failures
) -> dict[str, list[Measurement]]:
    """Return `_measure` of all finalists, or of those that their targets accept."""
    try:
        return _measure(goal, models)
    except HwnasError as error:
        if not is_own_fault(error):
            raise
    able = {}
    for candidate, model in models.items():
        with failures.of(candidate.id):
            _measure(goal, {candidate: model})
            able[candidate] = model
    return _measure(goal, able) if able else {}


def _measure(goal: SearchGoal, models: Mapping[Candidate, Path]) -> dict[str, list[Measurement]]:
    """Measure every finalist on every target of the goal in its number format."""
    measured: dict[str, list[Measurement]] = {candidate.id: [] for candidate in models}
    for target in goal.targets:
        able = _running_on(goal, target, models)
        for name, measurement in measure(able, Target.parse(target)).items() if able else ():
            measured[name].append(measurement)
    return measured


def _running_on(goal: SearchGoal, target: str, models: Mapping[Candidate, Path]) -> dict[str, Path]:
    """Return the files of the candidates in the number format of a target, by id."""
    return {c.id: model for c, model in models.items() if target in goal.targets_of(c)}


def _other_costs(
    job: Job, goal: SearchGoal, models: Mapping[Candidate, Path]
) -> dict[str, list[MeasuredCost]]:
    """Measure every finalist in the goal's metrics other than latency, as far as that can be done.

    A metric without a counter on this machine remains predicted.
    """
    found: dict[str, list[MeasuredCost]] = {candidate.id: [] for candidate in models}
    for metric, target in goal.costs:
        able = _running_on(goal, target, models)
        if metric == LATENCY or not able:
            continue
        try:
            measured = DEVICE_METRICS[metric].measure(able, Target.parse(target))
        except DeviceError as error:
            job.reporter.note(f"{metric} of the finalists remains predicted: {error}")
            continue
        for name, cost in measured.items():
            found[name].append(cost)
    return found
