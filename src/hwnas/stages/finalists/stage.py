"""Finalists of a run: fine-tuned, tested, exported, measured and packaged."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.atomic import recovered_folder, replacing_folder
from hwnas.content import content_hash
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.packing import write_bundle
from hwnas.deploy.export.to_onnx import Export
from hwnas.deploy.measurement.measured_cost import MeasuredCost
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.catalogue import processor_of
from hwnas.deploy.targets.device import Target
from hwnas.errors import ArtifactError, DeviceError, HwnasError, RunError
from hwnas.identity import Identity, may_reuse
from hwnas.interval import is_proportion, metric_interval
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.progress import ProgressCallback
from hwnas.recipe_keys import code_of
from hwnas.search import Evaluation, Metric, Scored, SearchResult
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.evaluation.evaluate import own_training, recalibrate, score, weights_hash
from hwnas.search.objectives.front import knee
from hwnas.search.objectives.objective import LATENCY, Objective, label_on, unit_of
from hwnas.search.tasks.task import smoothed
from hwnas.search.training import (
    NetworkStep,
    Teacher,
    TrainConfig,
    fit,
    load_weights,
    save_weights,
    teacher_of,
    weights_identity,
)
from hwnas.search_spaces import Architecture, Candidate
from hwnas.stages.finalists.exporting import examples, export_network
from hwnas.stages.finalists.limits import best_kept, costs_of, limit_checks, of_bundle
from hwnas.stages.finalists.shortlist import Made, choose, fill_shortlist, is_own_fault, read_tried
from hwnas.stages.job import Job, RunInputs, RunStage, SearchGoal
from hwnas.stages.measurements import (
    Timed,
    measured_on,
    read_measurements,
    write_measurements,
)
from hwnas.stages.split_evaluator import Executed

__all__ = [
    "PICKS",
    "choose",
    "cost_of",
    "finalising",
    "latency_of",
    "make_bundles",
    "picks",
    "read_bundles",
    "score_of",
]

PICKS = ("knee", "fastest", "most-accurate")

_RECALIBRATION_IMAGES = 2048


def latency_of(bundle: Bundle, objectives: Sequence[Objective]) -> float | None:
    """Return the first latency objective that a bundle was measured for, in ms, or None."""
    return cost_of(bundle, [each for each in objectives if each.metric == LATENCY])


def cost_of(bundle: Bundle, objectives: Sequence[Objective]) -> float | None:
    """Return the first objective on devices that a bundle was measured for, or None."""
    costs = costs_of(bundle)
    for objective in objectives:
        if objective.all_targets and costs.keys() >= set(objective.costs):
            on = objective.on_targets(costs)
            return objective.reduced({target: cost.value for target, cost in on.items()})
    return None


def picks(
    bundles: Mapping[str, Bundle], metric: Metric, objectives: Sequence[Objective]
) -> dict[str, str]:
    """Return the ids of the ``knee``, ``fastest`` and ``most-accurate`` bundles.

    Latency is the measured latency of the first latency objective, and accuracy the validation
    score after fine-tuning; the test score is not used to choose. Without a latency objective there
    is no ``fastest``, and the knee is that of the first other measured cost. A bundle that breaks a
    limit is never picked. One that misses a limit within noise is picked only if no bundle keeps
    all limits. So there may be no picks at all.
    """
    able = best_kept({name: of_bundle(bundle, objectives) for name, bundle in bundles.items()})
    bundles = {name: bundles[name] for name in able}
    if not bundles:
        return {}
    ids = list(bundles)
    sign = -1.0 if metric.direction == "maximize" else 1.0
    scores = [[sign * score_of(b, metric.name, "validation")["value"]] for b in bundles.values()]
    named = {"most-accurate": ids[int(np.argmin(scores))]}
    timed = [each for each in objectives if each.metric == LATENCY]
    measured = [cost_of(bundle, timed or objectives) for bundle in bundles.values()]
    costs = [[cost] for cost in measured if cost is not None]
    if len(costs) == len(bundles):
        if timed:
            named["fastest"] = ids[int(np.argmin(costs))]
        named["knee"] = ids[knee(np.hstack([scores, np.log(costs)]))]
    return named


def score_of(bundle: Bundle, metric: str, split: str) -> Mapping[str, Any]:
    """Return a metric of a bundle on a split, with its standard error and n."""
    rows: list[Mapping[str, Any]] = bundle.description["metrics"]
    return next(row for row in rows if row["name"] == metric and row.get("split") == split)


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
    )

    def work(advance: ProgressCallback) -> None:
        with replacing_folder(out / "bundles") as folder:
            timed: list[Timed] = []
            make = _maker(job, goal, weights, folder, timed, advance)
            shortlist = fill_shortlist(result, recipe.deploy.top, make, job.reporter.note)
            for each in shortlist.tried:
                if not each.packed:
                    shutil.rmtree(folder / each.id, ignore_errors=True)
            write_measurements(table, timed)
            shortlist.write(out)

    def made() -> bool:
        wanted = {each.id for each in read_tried(out) if each.packed} or set(ids)
        timed = {row.architecture.id for row in read_measurements(table) if row.role == "finalist"}
        packed = read_bundles(out / "bundles").keys()
        networks = {t.candidate.network.id for t in result.trials if t.candidate.id in wanted}
        return packed >= wanted and (timed >= networks or not goal.targets)

    def adopt() -> Identity | None:
        for trial in first:
            path = job.folder.path / "finalists" / f"{trial.candidate.id}.safetensors"
            if path.exists():
                inherited = _inherited(job, trial.candidate, weights)
                wanted = _tuned_identity(job.run_inputs, trial.candidate, inherited)
                save_weights(path, load_weights(path), wanted.key)
        rows = [row for row in read_measurements(table) if row.role == "finalist"]
        return Identity({**identity.inputs, "hardware": ", ".join(measured_on(rows))})

    continued = ("candidates", "limits")
    return RunStage(goal.stage("finalists"), identity, work, made, adopt, continued)


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
        Measurements of each network on every target of the goal, by id.
    """
    failures = _Failures(failed)
    tuned = _fine_tune(
        job, trials, weights, job.folder.path.absolute() / "finalists", advance, failures
    )
    with tempfile.TemporaryDirectory() as temporary:
        files = {}
        for done, trial in enumerate(trials):
            name = trial.candidate.id
            if name not in tuned:
                continue
            advance(0.5 + 0.3 * done / len(trials), f"exporting {name}")
            with failures.of(name):
                files[name] = _export(job.run_inputs, trial, tuned[name], Path(temporary))
        advance(0.8, "timing")
        models = {name: file.export.path for name, file in files.items()}
        measured = _measure_able(goal, models, failures)
        costs = _other_costs(job, goal, {name: models[name] for name in measured})
        for trial in trials:
            name = trial.candidate.id
            if name not in measured:
                continue
            with failures.of(name):
                _pack(job, goal, trial, files[name], measured[name], costs[name], folder)
    return {name: found for name, found in measured.items() if name not in failures}


class _Failures:
    """Errors of single candidates, by id; raised immediately if no dictionary is given."""

    def __init__(self, found: dict[str, HwnasError] | None) -> None:
        self._found = found

    def __contains__(self, name: str) -> bool:
        return self._found is not None and name in self._found

    def take(self, name: str, error: HwnasError) -> None:
        """Record the error of a candidate, or raise it."""
        if self._found is None or not is_own_fault(error):
            raise error
        self._found[name] = error

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Pass errors raised in the context to `take`."""
        try:
            yield
        except HwnasError as error:
            self.take(name, error)


def _fine_tune(
    job: Job,
    finalists: Sequence[Scored],
    weights: Mapping[str, Tensor] | None,
    folder: Path,
    advance: ProgressCallback,
    failures: _Failures,
) -> dict[str, Path]:
    """Return the files with the weights of the finalists, by id."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = []
    for trial in finalists:
        inherited = _inherited(job, trial.candidate, weights)
        name = trial.candidate.id
        tasks.append((trial.candidate, inherited, folder / f"{name}.safetensors"))
    tuned: dict[str, Path] = {}
    shared = job.run_inputs, None if weights is None else _teacher(job.run_inputs)
    outcomes = map_tasks(_try_to_tune, shared, tasks, job.recipe.workers)
    for done, (trial, outcome) in enumerate(zip(finalists, outcomes, strict=True), start=1):
        if isinstance(outcome, HwnasError):
            failures.take(trial.candidate.id, outcome)
        else:
            tuned[trial.candidate.id] = outcome
        advance(0.5 * done / len(finalists), f"fine-tuned {done}/{len(finalists)}")
    return tuned


def _inherited(
    job: Job, candidate: Candidate, weights: Mapping[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """Return weights from the supernet, or those that the search trained and kept, if any."""
    if weights is not None:
        supernet = job.run_inputs.space.supernet()
        supernet.shared.load_state_dict(weights)
        return supernet.extract(candidate.network).state_dict()
    return job.kept_weights(candidate)


def _teacher(run_inputs: RunInputs) -> Teacher | None:
    """Return the teacher of finalists with supernet weights, prepared once for all; or None."""
    config = run_inputs.recipe.fine_tuning
    teacher = None if config is None else teacher_of(run_inputs.space, config)
    if config is None or teacher is None:
        return None
    return teacher.prepared(config.teacher_sees, run_inputs.task, run_inputs.data.train)


def _try_to_tune(
    shared: tuple[RunInputs, Teacher | None],
    candidate: Candidate,
    inherited: Mapping[str, Tensor] | None,
    path: Path,
) -> Path | HwnasError:
    """Return the result of `_tune`, or the error of this candidate, so that the others continue."""
    try:
        return _tune(shared, candidate, inherited, path)
    except HwnasError as error:
        if is_own_fault(error):
            return error
        raise


def _tune(
    shared: tuple[RunInputs, Teacher | None],
    candidate: Candidate,
    inherited: Mapping[str, Tensor] | None,
    path: Path,
) -> Path:
    """Fine-tune a candidate with inherited weights, or train it from scratch without them.

    An existing file that was made from the same inputs is reused.
    """
    run_inputs, teacher = shared
    identity = _tuned_identity(run_inputs, candidate, inherited)
    if _is_tuned(path, identity):
        return path
    recipe, space, task = run_inputs.recipe, run_inputs.space, run_inputs.task
    data, shape = run_inputs.data, space.input_shape(candidate.network)
    torch.manual_seed(recipe.seed)
    network = space.build(candidate.network)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    config: TrainConfig | None = own_training(recipe.train, run_inputs.recipe_space, candidate)
    if inherited is not None:
        network.load_state_dict(inherited)
        config = recipe.fine_tuning
    if config is not None:
        learned = smoothed(task, config.label_smoothing)
        distillation = config.distillation, config.distillation_loss
        step = NetworkStep(network, learned, shape, teacher, *distillation)
        fit(network, step, data.train, config, recipe.seed)
    recalibrate(network, task, data.train.first(_RECALIBRATION_IMAGES), shape)
    save_weights(path, network.state_dict(), identity.key)
    return path


def _is_tuned(path: Path, identity: Identity) -> bool:
    """Return whether the weights of a finalist exist and were made from the same inputs.

    Raises:
        RunError: The file is damaged, which another candidate would not change.
    """
    try:
        return path.exists() and may_reuse(weights_identity(path), identity)
    except ArtifactError as error:
        raise RunError(str(error)) from error


def _tuned_identity(
    run_inputs: RunInputs, candidate: Candidate, inherited: Mapping[str, Tensor] | None
) -> Identity:
    """Return the identity of the inputs that the weights of a finalist depend on."""
    recipe, config = run_inputs.recipe, run_inputs.recipe.fine_tuning
    if inherited is None:
        config = own_training(recipe.train, run_inputs.recipe_space, candidate)
    return Identity.of(
        candidate=candidate.id,
        space=run_inputs.space.fingerprint,
        task=content_hash(run_inputs.task),
        data=run_inputs.data.fingerprint,
        inherited="none" if inherited is None else weights_hash(inherited),
        training={} if config is None else config.identity,
        seed=str(recipe.seed),
        code=code_of(recipe, "finalists"),
    )


@dataclass(frozen=True)
class _File:
    """Exported finalist, with its scores in the runtime that it ships for."""

    weights: Path
    export: Export
    validation: Evaluation
    test: Evaluation


def _export(run_inputs: RunInputs, trial: Scored, weights: Path, folder: Path) -> _File:
    architecture = trial.candidate.network
    network = _network(run_inputs, architecture, weights)
    shape = run_inputs.space.input_shape(architecture)
    path = folder / f"{trial.candidate.id}.onnx"
    export = export_network(run_inputs, architecture, network, path)
    executed, task, data = Executed(path), run_inputs.task, run_inputs.data
    validation = score(executed, task, data.validation, shape, "validation")
    test = score(executed, task, data.test, shape, "test")
    for evaluation in (validation, test):
        for name, value in evaluation.values.items():
            if not math.isfinite(value):
                raise ArtifactError(
                    f"network {trial.candidate.id} has {name} {value} on {evaluation.split} images"
                )
    return _File(weights, export, validation, test)


def _network(run_inputs: RunInputs, architecture: Architecture, weights: Path) -> nn.Module:
    network = run_inputs.space.build(architecture)
    network.load_state_dict(load_weights(weights))
    return network.eval()


def _measure_able(
    goal: SearchGoal, models: Mapping[str, Path], failures: _Failures
) -> dict[str, list[Measurement]]:
    """Return `_measure` of all finalists, or of those that every target accepts."""
    try:
        return _measure(goal, models)
    except HwnasError as error:
        if not is_own_fault(error):
            raise
    able = {}
    for name, model in models.items():
        with failures.of(name):
            _measure(goal, {name: model})
            able[name] = model
    return _measure(goal, able) if able else {}


def _measure(goal: SearchGoal, models: Mapping[str, Path]) -> dict[str, list[Measurement]]:
    """Measure every finalist on every target of the goal."""
    measured: dict[str, list[Measurement]] = {name: [] for name in models}
    for target in goal.targets:
        for name, measurement in measure(models, Target.parse(target)).items():
            measured[name].append(measurement)
    return measured


def _other_costs(
    job: Job, goal: SearchGoal, models: Mapping[str, Path]
) -> dict[str, list[MeasuredCost]]:
    """Measure every finalist in the goal's metrics other than latency, as far as that can be done.

    A metric without a counter on this machine remains predicted.
    """
    found: dict[str, list[MeasuredCost]] = {name: [] for name in models}
    for metric, target in goal.costs:
        if metric == LATENCY or not models:
            continue
        try:
            measured = DEVICE_METRICS[metric].measure(models, Target.parse(target))
        except DeviceError as error:
            job.reporter.note(f"{metric} of the finalists remains predicted: {error}")
            continue
        for name, cost in measured.items():
            found[name].append(cost)
    return found


def _pack(
    job: Job,
    goal: SearchGoal,
    trial: Scored,
    file: _File,
    measured: Sequence[Measurement],
    costs: Sequence[MeasuredCost],
    folder: Path,
) -> None:
    run_inputs, recipe = job.run_inputs, job.recipe
    network = trial.candidate.network
    shape = run_inputs.space.input_shape(network)
    some = run_inputs.data.validation.first(examples(run_inputs))
    images, _ = some.take(np.arange(len(some)))
    units = {metric.name: metric.unit for metric in run_inputs.task.metrics}
    metrics = [
        *_metrics(file.test, units),
        *_metrics(file.validation, units),
        *({"name": k, "value": v, "kind": "counted"} for k, v in trial.counted.items()),
        *(cost.to_json() for cost in costs),
    ]
    checks = limit_checks(goal.objectives, metrics, measured)
    bundle = write_bundle(
        folder / trial.candidate.id,
        onnx=file.export.path,
        weights=load_weights(file.weights),
        preprocessing=run_inputs.task.preprocessing.at(*shape[1:]),
        outputs=run_inputs.task.meaning,
        architecture=network,
        space=recipe.space.names[0],
        roles=trial.candidate.others,
        task=run_inputs.task.name,
        metrics=metrics,
        measurements=measured,
        predictions=[
            {
                "name": estimate.metric,
                "value": estimate.mean,
                "std": estimate.std,
                "unit": unit_of(estimate.metric),
                "kind": estimate.kind,
                "target": estimate.target,
            }
            for estimate in (trial.estimates.get(label_on(*each)) for each in goal.costs)
            if estimate is not None
        ],
        export=file.export,
        golden_images=images,
        provenance={
            "run": recipe.name,
            "seed": recipe.seed,
            "recipe": recipe.hash,
            "trial": trial.number,
            "study": goal.study_name,
            "data": {"source": recipe.data.source, "fingerprint": run_inputs.data.fingerprint},
            "training_images": len(run_inputs.data.train),
            **({"limits": [check.to_json() for check in checks]} if checks else {}),
            "versions": job.folder.about["versions"],
            "machine": job.folder.about["machine"],
        },
    )
    bundle.verify()


def _metrics(evaluation: Evaluation, units: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return each metric of an evaluation with its 95% interval."""
    rows = []
    for name, value in evaluation.values.items():
        error = evaluation.standard_errors[name]
        proportion = is_proportion(units[name])
        interval = metric_interval(value, error, evaluation.n, proportion=proportion)
        rows.append(
            {
                "name": name,
                "value": value,
                "unit": units[name],
                "kind": "evaluated",
                "runtime": "onnxruntime",
                "split": evaluation.split,
                "n": evaluation.n,
                "standard_error": error,
                "interval": interval.ends,
                "interval_method": interval.method,
            }
        )
    return rows


def read_bundles(folder: Path) -> dict[str, Bundle]:
    """Return the bundles of a run or of one of its targets, by candidate id."""
    if not recovered_folder(folder).is_dir():
        return {}
    bundles = [Bundle.load(p.parent) for p in sorted(folder.glob("*/bundle.json"))]
    return {bundle.folder.name: bundle for bundle in bundles}
