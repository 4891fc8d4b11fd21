"""Export of finalists, their evaluation as exported, and their bundles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hwnas.deploy.bundles.converting import convert_bundle
from hwnas.deploy.bundles.packing import (
    BundleFacts,
    BundleNetwork,
    ShippedVariant,
    write_bundle,
)
from hwnas.deploy.export.to_onnx import Export
from hwnas.deploy.measurement.measured_cost import MeasuredCost
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.targets.target import Device, Target
from hwnas.errors import ArtifactError
from hwnas.interval import is_proportion, metric_interval
from hwnas.search import Evaluation, Scored
from hwnas.search.evaluation.converted import Executed, converted_file
from hwnas.search.evaluation.scoring import score
from hwnas.search.objectives.objective import label_on, unit_of
from hwnas.search.training import load_weights
from hwnas.search_spaces import Architecture
from hwnas.search_spaces.space.task_paths import TaskPathSpace, path_macs
from hwnas.stages.finalists.chance import refuse_chance
from hwnas.stages.finalists.exporting import examples, export_network
from hwnas.stages.finalists.limits import LimitCheck, limit_checks
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job
from hwnas.stages.run_inputs import RunInputs
from hwnas.stages.split_evaluator import check_on_test_images

__all__ = ["PATH_MACS", "ExportedFinalist", "export_finalist", "metric_rows", "pack"]

PATH_MACS = "macs@"
"""Name in a bundle of the multiply-accumulates of a task's path, before the name of the task."""
_SCORED_AT_ONCE = 256


@dataclass(frozen=True)
class ExportedFinalist:
    """Exported finalist, with its scores in the runtime and number format that it ships for.

    Attributes:
        weights: File with its weights.
        export: Exported file, in single precision.
        variant: Variant that ships in its place; None if the exported file ships.
        validation: Scores on validation images.
        test: Scores on test images.
        tested: Scores on test images of all fine-tunings, the delivered one among them; empty if
            there was only one.
    """

    weights: Path
    export: Export
    variant: ShippedVariant | None
    validation: Evaluation
    test: Evaluation
    tested: tuple[Evaluation, ...] = ()

    @property
    def shipped(self) -> Path:
        """ONNX file that ships."""
        return self.export.path if self.variant is None else self.variant.model

    @property
    def runtime(self) -> str:
        """Runtime in which it was evaluated."""
        return "onnxruntime" if self.variant is None else self.variant.target.device.runtime


def export_finalist(
    run_inputs: RunInputs, goal: SearchGoal, trial: Scored, weights: Sequence[Path], folder: Path
) -> ExportedFinalist:
    """Export a finalist with the best of its weights, and evaluate the ONNX file that ships.

    Args:
        run_inputs: Data, task and space of the run.
        goal: Goal, in one of whose number formats the finalist ships.
        trial: Trial of the finalist.
        weights: Files with the weights of its fine-tunings, at least one.
        folder: Folder for the ONNX files.

    Raises:
        ArtifactError: The network cannot be exported or converted, a metric of it is not finite, or
            the conversion leaves it at chance.
    """
    architecture = trial.candidate.network
    networks = [_network(run_inputs, architecture, file) for file in weights]
    shape = run_inputs.space.input_shape(architecture)
    best, tested = _best(run_inputs, networks, shape) if len(networks) > 1 else (0, ())
    path = folder / f"{trial.candidate.id}.onnx"
    export = export_network(run_inputs, architecture, networks[best], path)
    variant = _variant(run_inputs, goal, trial, path)
    executed = Executed(path) if variant is None else Executed(variant.model, variant.target)
    task, data = run_inputs.task, run_inputs.data
    validation = score(executed, task, data.validation, shape, "validation")
    test = score(executed, task, data.test, shape, "test")
    for evaluation in (validation, test):
        for name, value in evaluation.values.items():
            if not math.isfinite(value):
                raise ArtifactError(
                    f"network {trial.candidate.id} has {name} {value} on {evaluation.split} images"
                )
    if variant is not None:
        refuse_chance(run_inputs, path, variant.name, shape, validation)
    return ExportedFinalist(weights[best], export, variant, validation, test, tested)


def _variant(
    run_inputs: RunInputs, goal: SearchGoal, trial: Scored, model: Path
) -> ShippedVariant | None:
    """Convert an exported network to its number format; None if it is in that already."""
    number_format = goal.format_of(trial.candidate)
    if number_format == "fp32":
        return None
    shape = run_inputs.space.input_shape(trial.candidate.network)
    preprocessing = run_inputs.task.preprocessing.at(*shape[1:])
    made = converted_file(model, number_format, run_inputs.data.train, preprocessing)
    runtime = Target.parse(goal.target_of(trial)).device.runtime
    target = Target(Device.here(runtime, _SCORED_AT_ONCE), number_format)
    return ShippedVariant(made, number_format, target)


def _best(
    run_inputs: RunInputs, networks: Sequence[nn.Module], shape: tuple[int, int, int]
) -> tuple[int, tuple[Evaluation, ...]]:
    """Return the number of the best network on validation images, and the test scores of all."""
    task, data = run_inputs.task, run_inputs.data
    metric = task.metrics[0]
    sign = 1 if metric.direction == "maximize" else -1
    scores = [
        sign * score(network, task, data.validation, shape, "validation").values[metric.name]
        for network in networks
    ]
    tested = tuple(score(network, task, data.test, shape, "test") for network in networks)
    return int(np.argmax(scores)), tested


def _network(run_inputs: RunInputs, architecture: Architecture, weights: Path) -> nn.Module:
    network = run_inputs.space.build(architecture)
    network.load_state_dict(load_weights(weights))
    return network.eval()


def pack(
    job: Job,
    goal: SearchGoal,
    trial: Scored,
    file: ExportedFinalist,
    measured: Sequence[Measurement],
    costs: Sequence[MeasuredCost],
    folder: Path,
) -> None:
    """Write the verified bundle of a finalist into a folder named by its id.

    Args:
        job: Run of the finalist.
        goal: Goal of the run that the finalist belongs to.
        trial: Trial of the finalist.
        file: The finalist as exported.
        measured: Latency of the finalist on each target of the goal.
        costs: Other measured costs of the finalist.
        folder: Folder of the bundles.

    Raises:
        ArtifactError: The bundle does not pass its verification.
    """
    run_inputs, recipe = job.run_inputs, job.recipe
    network = trial.candidate.network
    shape = run_inputs.space.input_shape(network)
    some = run_inputs.data.validation.first(examples(run_inputs))
    images, _ = some.take(np.arange(len(some)))
    units = {metric.name: metric.unit for metric in run_inputs.task.metrics}
    metrics = [
        *metric_rows(file.test, units, file.runtime, file.tested),
        *metric_rows(file.validation, units, file.runtime),
        *({"name": k, "value": v, "kind": "counted"} for k, v in trial.counted.items()),
        *_paths(run_inputs, network),
        *(cost.to_json() for cost in costs),
    ]
    packed = BundleNetwork(
        network,
        file.export,
        load_weights(file.weights),
        run_inputs.task.preprocessing.at(*shape[1:]),
        run_inputs.task.meaning,
        images,
        trial.candidate.others,
        file.variant,
    )
    facts = BundleFacts(
        recipe.space.names[0],
        run_inputs.task.name,
        _provenance(job, goal, trial, limit_checks(goal.objectives, metrics, measured)),
        metrics,
        measured,
        _predictions(goal, trial),
    )
    bundle = write_bundle(folder / trial.candidate.id, packed, facts)
    if recipe.deploy.formats:
        check = check_on_test_images(run_inputs.task, run_inputs.data, bundle)
        bundle = convert_bundle(bundle, recipe.deploy.formats, check=check)
    bundle.verify()


def _paths(run_inputs: RunInputs, network: Architecture) -> list[dict[str, Any]]:
    """Return the multiply-accumulates of each task's path, if the network does several tasks."""
    space = run_inputs.space
    if not isinstance(space, TaskPathSpace) or len(space.task_names) < 2:
        return []
    macs = path_macs(space, network)
    return [
        {"name": f"{PATH_MACS}{task}", "value": n, "kind": "counted"} for task, n in macs.items()
    ]


def metric_rows(
    evaluation: Evaluation,
    units: Mapping[str, str],
    runtime: str,
    of_seeds: Sequence[Evaluation] = (),
) -> list[dict[str, Any]]:
    """Return each metric of an evaluation with its 95% interval, and its values over seeds."""
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
                "runtime": runtime,
                "split": evaluation.split,
                "n": evaluation.n,
                "standard_error": error,
                "interval": interval.ends,
                "interval_method": interval.method,
                **({"of_seeds": [each.values[name] for each in of_seeds]} if of_seeds else {}),
            }
        )
    return rows


def _predictions(goal: SearchGoal, trial: Scored) -> list[dict[str, Any]]:
    """Return the predicted costs of a candidate on the targets of the goal."""
    estimates = [trial.estimates.get(label_on(*each)) for each in goal.costs]
    return [
        {
            "name": estimate.metric,
            "value": estimate.mean,
            "std": estimate.std,
            "unit": unit_of(estimate.metric),
            "kind": estimate.kind,
            "target": estimate.target,
        }
        for estimate in estimates
        if estimate is not None
    ]


def _provenance(
    job: Job, goal: SearchGoal, trial: Scored, checks: Sequence[LimitCheck]
) -> dict[str, Any]:
    """Return the origin of a finalist, and how it meets the limits."""
    recipe, data = job.recipe, job.run_inputs.data
    limits = {"limits": [check.to_json() for check in checks]} if checks else {}
    return {
        "run": recipe.name,
        "seed": recipe.seed,
        "recipe": recipe.hash,
        "trial": trial.number,
        "study": goal.study_name,
        "data": {"source": recipe.data.source, "fingerprint": data.fingerprint},
        "training_images": len(data.train),
        **limits,
        "versions": job.folder.about["versions"],
        "machine": job.folder.about["machine"],
    }
