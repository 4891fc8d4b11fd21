"""The winners: fine-tuned, tested, exported, measured and packed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.atomic import recovered_folder, replacing_folder
from hwnas.deploy.bundle import Bundle
from hwnas.deploy.device import Target
from hwnas.deploy.export import Export
from hwnas.deploy.measurement import Measurement
from hwnas.deploy.packing import write_bundle
from hwnas.deploy.timing import measure
from hwnas.progress import Advance
from hwnas.search import Evaluation, Metric, Scored, SearchResult
from hwnas.search.cluster import map_tasks
from hwnas.search.evaluate import own_training, recalibrate, score
from hwnas.search.front import knee, pick_spread
from hwnas.search.objective import LATENCY, Objective, label_on, weighed
from hwnas.search.task import smoothed
from hwnas.search.training import (
    NetworkStep,
    Teacher,
    TrainConfig,
    fit,
    load_weights,
    save_weights,
    teacher_of,
)
from hwnas.search_spaces import Architecture, Candidate
from hwnas.stages.examination import Executed
from hwnas.stages.exporting import examples, export_network
from hwnas.stages.job import Goal, Ingredients, Job
from hwnas.stages.measurements import Timed, read_measurements, write_measurements

__all__ = ["choose", "finish", "latency_of", "make_bundles", "picks", "read_bundles", "score_of"]

_RECALIBRATION_IMAGES = 2048


def choose(result: SearchResult, count: int) -> list[Scored]:
    """A few candidates that show the whole front, from the next fronts where it is too small."""
    feasible = result.feasible
    table = weighed(result.objectives, [trial.values for trial in feasible])
    return [feasible[i] for i in pick_spread(table, count)]


def latency_of(bundle: Bundle, objectives: Sequence[Objective]) -> float | None:
    """The first latency objective as the bundle was measured, in ms; None where it was not."""
    known = {measurement.target: measurement.latency_ms for measurement in bundle.measurements}
    for objective in objectives:
        if objective.metric == LATENCY and known.keys() >= set(objective.priced_on):
            return objective.reduced(known)
    return None


def picks(
    bundles: Mapping[str, Bundle], metric: Metric, objectives: Sequence[Objective]
) -> dict[str, str]:
    """Ids of the ``knee``, the ``fastest`` and the ``most-accurate`` of some bundles.

    They go by the measured latency of the first objective that is one, and by the validation score
    after fine-tuning; the test score chooses nothing.
    """
    if not bundles:
        return {}
    ids = list(bundles)
    sign = -1.0 if metric.direction == "maximize" else 1.0
    scores = [[sign * score_of(b, metric.name, "validation")["value"]] for b in bundles.values()]
    named = {"most-accurate": ids[int(np.argmin(scores))]}
    measured = [latency_of(bundle, objectives) for bundle in bundles.values()]
    latencies = [[latency_ms] for latency_ms in measured if latency_ms is not None]
    if len(latencies) == len(bundles):
        named["fastest"] = ids[int(np.argmin(latencies))]
        named["knee"] = ids[knee(np.hstack([scores, np.log(latencies)]))]
    return named


def score_of(bundle: Bundle, metric: str, split: str) -> Mapping[str, Any]:
    """A metric of a bundle on a split, with its standard error and n."""
    rows: list[Mapping[str, Any]] = bundle.description["metrics"]
    return next(row for row in rows if row["name"] == metric and row.get("split") == split)


def finish(
    job: Job, goal: Goal, result: SearchResult, weights: Mapping[str, Tensor] | None
) -> None:
    """Make a verified bundle of each finalist, unless that is done."""
    recipe, out = job.recipe, job.folder.output(goal.target)
    table = out / "measurements.parquet"
    finalists = choose(result, recipe.deploy.top)
    ids = [trial.candidate.id for trial in finalists]
    inputs = [job.training_hash, recipe.deploy, ids, goal.targets]

    def work(advance: Advance) -> None:
        with replacing_folder(out / "bundles") as folder:
            measured = make_bundles(job, goal, finalists, weights, folder, advance)
            write_measurements(
                table,
                [
                    Timed(t.candidate.network, "finalist", m)
                    for t in finalists
                    for m in measured[t.candidate.id]
                ],
            )

    def made() -> bool:
        timed = {row.architecture.id for row in read_measurements(table) if row.role == "finalist"}
        packed = read_bundles(out / "bundles").keys()
        networks = {trial.candidate.network.id for trial in finalists}
        return packed >= set(ids) and (timed >= networks or not goal.targets)

    job.perform(goal.stage("finalists"), inputs, work, made)


def make_bundles(
    job: Job,
    goal: Goal,
    trials: Sequence[Scored],
    weights: Mapping[str, Tensor] | None,
    folder: Path,
    advance: Advance,
) -> dict[str, list[Measurement]]:
    """Fine-tune, test, export, measure and pack some candidates, each into a folder of its id.

    Returns:
        For each id how long the network took on every target of the goal.
    """
    tuned = _fine_tune(job, trials, weights, job.folder.path.absolute() / "finalists", advance)
    with tempfile.TemporaryDirectory() as temporary:
        files = {}
        for done, trial in enumerate(trials):
            name = trial.candidate.id
            advance(0.5 + 0.3 * done / len(trials), f"exporting {name}")
            files[name] = _export(job.ingredients, trial, tuned[name], Path(temporary))
        advance(0.8, "timing")
        measured = _measure(goal, {name: file.export.path for name, file in files.items()})
        for trial in trials:
            name = trial.candidate.id
            _pack(job, goal, trial, files[name], measured[name], folder)
    return measured


def _fine_tune(
    job: Job,
    finalists: Sequence[Scored],
    weights: Mapping[str, Tensor] | None,
    folder: Path,
    advance: Advance,
) -> dict[str, Path]:
    """Files with the weights of the finalists, by their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = []
    for trial in finalists:
        inherited = _inherited(job, trial.candidate.network, weights)
        name = trial.candidate.id
        tasks.append((trial.candidate, inherited, folder / f"{name}.safetensors"))
    tuned: dict[str, Path] = {}
    shared = job.ingredients, None if weights is None else _teacher(job.ingredients)
    outcomes = map_tasks(_tune, shared, tasks, job.recipe.workers)
    for trial, outcome in zip(finalists, outcomes, strict=True):
        tuned[trial.candidate.id] = outcome
        advance(0.5 * len(tuned) / len(finalists), f"fine-tuned {len(tuned)}/{len(finalists)}")
    return tuned


def _inherited(
    job: Job, network: Architecture, weights: Mapping[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """From the supernet, or from the search where that trained networks and kept them."""
    if weights is not None:
        supernet = job.ingredients.space.supernet()
        supernet.shared.load_state_dict(weights)
        return supernet.extract(network).state_dict()
    return None if job.lineage is None else job.lineage.weights(network)


def _teacher(ingredients: Ingredients) -> Teacher | None:
    """Of the finalists that have weights of a supernet; asked once for all of them, if at all."""
    config = ingredients.recipe.fine_tuning
    teacher = None if config is None else teacher_of(ingredients.space, config)
    if config is None or teacher is None:
        return None
    return teacher.prepared(config.teacher_sees, ingredients.task, ingredients.data.train)


def _tune(
    shared: tuple[Ingredients, Teacher | None],
    candidate: Candidate,
    inherited: Mapping[str, Tensor] | None,
    path: Path,
) -> Path:
    """Fine-tune what there are weights of, train all else from scratch.

    What is on disk already is not done again.
    """
    if path.exists():
        return path
    ingredients, teacher = shared
    recipe, space, task = ingredients.recipe, ingredients.space, ingredients.task
    data, shape = ingredients.data, space.input_shape(candidate.network)
    torch.manual_seed(recipe.seed)
    network = space.build(candidate.network)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    config: TrainConfig | None = own_training(recipe.train, ingredients.recipe_space, candidate)
    if inherited is not None:
        network.load_state_dict(inherited)
        config = recipe.fine_tuning
    if config is not None:
        learned = smoothed(task, config.label_smoothing)
        distillation = config.distillation, config.distillation_loss
        step = NetworkStep(network, learned, shape, teacher, *distillation)
        fit(network, step, data.train, config, recipe.seed)
    recalibrate(network, task, data.train.first(_RECALIBRATION_IMAGES), shape)
    save_weights(path, network.state_dict())
    return path


@dataclass(frozen=True)
class _File:
    """A finalist as it ships, with what that file is worth in the runtime that it ships for."""

    weights: Path
    export: Export
    validation: Evaluation
    test: Evaluation


def _export(ingredients: Ingredients, trial: Scored, weights: Path, folder: Path) -> _File:
    architecture = trial.candidate.network
    network = _network(ingredients, architecture, weights)
    shape = ingredients.space.input_shape(architecture)
    path = folder / f"{trial.candidate.id}.onnx"
    export = export_network(ingredients, architecture, network, path)
    executed, task, data = Executed(path), ingredients.task, ingredients.data
    validation = score(executed, task, data.validation, shape, "validation")
    return _File(weights, export, validation, score(executed, task, data.test, shape, "test"))


def _network(ingredients: Ingredients, architecture: Architecture, weights: Path) -> nn.Module:
    network = ingredients.space.build(architecture)
    network.load_state_dict(load_weights(weights))
    return network.eval()


def _measure(goal: Goal, models: Mapping[str, Path]) -> dict[str, list[Measurement]]:
    """Every finalist on every target of the goal."""
    measured: dict[str, list[Measurement]] = {name: [] for name in models}
    for target in goal.targets:
        for name, measurement in measure(models, Target.parse(target)).items():
            measured[name].append(measurement)
    return measured


def _pack(
    job: Job,
    goal: Goal,
    trial: Scored,
    file: _File,
    measured: Sequence[Measurement],
    folder: Path,
) -> None:
    ingredients, recipe = job.ingredients, job.recipe
    network = trial.candidate.network
    shape = ingredients.space.input_shape(network)
    images, _ = ingredients.data.validation.take(np.arange(examples(ingredients)))
    units = {metric.name: metric.unit for metric in ingredients.task.metrics}
    bundle = write_bundle(
        folder / trial.candidate.id,
        onnx=file.export.path,
        weights=load_weights(file.weights),
        preprocessing=ingredients.task.preprocessing.at(*shape[1:]),
        outputs=ingredients.task.meaning,
        architecture=network,
        space=recipe.space.names[0],
        roles=trial.candidate.others,
        task=ingredients.task.name,
        metrics=[
            *_metrics(file.test, units),
            *_metrics(file.validation, units),
            *({"name": k, "value": v, "kind": "counted"} for k, v in trial.counted.items()),
        ],
        measurements=measured,
        predictions=[
            {
                "name": estimate.metric,
                "value": estimate.mean,
                "std": estimate.std,
                "unit": "ms",
                "kind": estimate.kind,
                "target": estimate.target,
            }
            for estimate in (trial.estimates[label_on(LATENCY, t)] for t in goal.targets)
        ],
        export=file.export,
        golden_images=images,
        provenance={
            "run": recipe.name,
            "seed": recipe.seed,
            "recipe": recipe.hash,
            "trial": trial.number,
            "study": goal.study_name,
            "data": {"source": recipe.data.source, "fingerprint": ingredients.data.fingerprint},
            "training_images": len(ingredients.data.train),
            "versions": job.folder.about["versions"],
            "machine": job.folder.about["machine"],
        },
    )
    bundle.verify()


def _metrics(evaluation: Evaluation, units: Mapping[str, str]) -> list[dict[str, Any]]:
    """Each metric of a file with its 95% interval by the normal approximation."""
    rows = []
    for name, value in evaluation.values.items():
        error = evaluation.standard_errors[name]
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
                "interval": [value - 1.96 * error, value + 1.96 * error],
            }
        )
    return rows


def read_bundles(folder: Path) -> dict[str, Bundle]:
    """The bundles of a run or of one of its targets, by candidate id."""
    if not recovered_folder(folder).is_dir():
        return {}
    bundles = [Bundle.load(p.parent) for p in sorted(folder.glob("*/bundle.json"))]
    return {bundle.folder.name: bundle for bundle in bundles}
