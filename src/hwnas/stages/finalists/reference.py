"""Reference network of a run, tested, exported, measured and packaged like a finalist.

It shows whether the search found anything better. If the networks start from trained weights, it is
the model that these are from, as it was given. Otherwise it is MobileNetV3-Small (Howard et al.,
ICCV 2019, table 2), as wide as the limits allow, trained alone with the settings of the candidates.
If the search trains each candidate alone on several workers, one of them trains the reference
network first.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hwnas.atomic import replacing_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.targets.catalogue import processor_of
from hwnas.deploy.targets.target import Target
from hwnas.progress import ProgressCallback
from hwnas.recipe import Recipe, SpaceConfig
from hwnas.search import Scored, TrainEvaluator
from hwnas.search.engine.cluster import started_beside
from hwnas.search.engine.placement import live_nodes
from hwnas.search.engine.threads import torch_threads
from hwnas.search.objectives.objective import COUNTED
from hwnas.search.training import save_weights
from hwnas.search_spaces import Architecture, Candidate, SearchSpace
from hwnas.search_spaces.registry import named_space
from hwnas.stages.finalists.fine_tuning import train_finalist, weights_path
from hwnas.stages.finalists.stage import bundle_trained, make_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage
from hwnas.stages.run_inputs import RunInputs
from hwnas.stages.untrained_costs import excesses, limited

__all__ = [
    "GIVEN_MODEL",
    "REFERENCE",
    "reference_name",
    "reference_of",
    "referencing",
    "with_reference",
]

REFERENCE: Literal["reference"] = "reference"
"""Name of the stage, of the bundle's folder, and of the network for ``hwnas export --pick``."""

GIVEN_MODEL = "the given model"
"""Name of the reference network for the user, if the networks start from its weights."""

WIDTHS = (0.35, 0.5, 0.75, 1.0)
"""Width multipliers; the largest one that keeps the limits is used."""

_SPACE = "mobilenet"
_PRESET = "mobilenet-v3-small"
_ALL_CORES = 0.6  # share of a candidate's minutes on one core; two cores are not twice as fast


def referencing(job: Job, goal: SearchGoal) -> RunStage:
    """Return the stage that makes the bundle of the reference network."""
    folder = job.folder.output(goal.target) / REFERENCE
    processors = [processor_of(Target.parse(target).device.hardware) for target in goal.targets]
    given = job.run_inputs.space.pretrained
    learned = {name: value for name, value in job.learned.items() if name != "space" or given}
    minutes = job.recipe.deploy.reference_minutes
    identity = job.identity(
        REFERENCE,
        **learned,
        **({} if minutes is None else {"minutes": minutes}),
        hardware=", ".join(sorted(set(processors))),
        targets=goal.targets,
    )

    def work(advance: ProgressCallback) -> None:
        with (
            replacing_folder(folder) as temporary,
            tempfile.TemporaryDirectory() as scratch,
            torch_threads(os.cpu_count() or 1),
        ):
            bundle = (_given_model if given else _trained)(job, goal, Path(scratch), advance)
            for file in bundle.iterdir():
                file.rename(temporary / file.name)

    return RunStage(REFERENCE, identity, work, lambda: reference_of(job, goal) is not None)


def with_reference(job: Job, goal: SearchGoal, search: RunStage) -> RunStage:
    """Return the stage of a search that also trains the reference network, beside its candidates.

    That is so if the search trains each candidate alone, on several workers. The stage of the
    reference network finds its weights afterwards, and trains it itself if there are none.
    """
    settings, trained = job.recipe.search, not job.run_inputs.space.pretrained
    wanted = job.recipe.deploy.reference and goal.target is None and trained
    if not wanted or settings.evaluator != "train" or settings.workers < 2:
        return search

    def work(advance: ProgressCallback) -> None:
        if job.is_done(referencing(job, goal)):
            search.work(advance)
            return
        made = _reference_job(job)
        candidate = Candidate.of(_choose_width(made.run_inputs, goal, advance))
        inputs = candidate, None, weights_path(made, candidate)
        gpus = settings.worker_resources(live_nodes()).gpus
        with started_beside(train_finalist, (made.run_inputs, None), *inputs, gpus=gpus):
            search.work(advance)

    return replace(search, work=work)


def reference_of(job: Job, goal: SearchGoal) -> Bundle | None:
    """Return the bundle of the reference network; None if it is not requested or not yet made."""
    folder = job.folder.output(goal.target) / REFERENCE
    wanted = job.recipe.deploy.reference and (folder / "bundle.json").exists()
    return Bundle.load(folder) if wanted else None


def reference_name(run_inputs: RunInputs, bundle: Bundle) -> str:
    """Return the name of a run's reference network, for the user."""
    if run_inputs.space.pretrained:
        return GIVEN_MODEL
    return f"MobileNetV3-Small x{bundle.architecture.as_dict()['width']:g} trained alone"


def _given_model(job: Job, goal: SearchGoal, folder: Path, advance: ProgressCallback) -> Path:
    """Bundle the model that the weights of the space are from; return the bundle's folder."""
    space, file = job.run_inputs.space, folder / "weights.safetensors"
    trial = _trial(space, space.largest())
    save_weights(file, space.build(trial.candidate.network).state_dict(), space.fingerprint)
    bundle_trained(job, goal, [trial], {trial.candidate.id: [file]}, folder, advance)
    return folder / trial.candidate.id


def _trained(job: Job, goal: SearchGoal, folder: Path, advance: ProgressCallback) -> Path:
    """Train and bundle MobileNetV3-Small; return the bundle's folder."""
    made = _reference_job(job)
    trial = _trial(made.run_inputs.space, _choose_width(made.run_inputs, goal, advance))
    make_bundles(made, goal, [trial], None, folder, advance)
    return folder / trial.candidate.id


def _choose_width(
    run_inputs: RunInputs, goal: SearchGoal, advance: ProgressCallback
) -> Architecture:
    """Return the widest network that keeps the limits, or else the narrowest."""
    space, objectives = run_inputs.space, limited(goal.objectives)
    if not objectives:
        return space.largest()
    for width in reversed(WIDTHS):
        architecture = space.architecture({**space.largest().as_dict(), "width": width})
        advance(0.0, f"measuring whether width {width:g} keeps the limits")
        if excesses(space, [architecture], objectives)[0] <= 1:
            return architecture
    return space.smallest()


def _reference_job(job: Job) -> Job:
    """Return the job with the reference space and the training of a candidate."""
    return replace(job, run_inputs=_run_inputs(job.run_inputs, os.cpu_count() or 1))


def _run_inputs(run_inputs: RunInputs, cores: int) -> RunInputs:
    """Return the same data and task, with the reference space and the training of a candidate."""
    recipe, shape = run_inputs.recipe, run_inputs.data.image_shape
    options = {
        "preset": _PRESET,
        "width": list(WIDTHS),
        "resolution": [max(shape[:2])],
        "dropout": 0.0,
    }
    space = named_space(_SPACE, shape, run_inputs.task.outputs, options)
    epochs, minutes = _budget(recipe, cores)
    return replace(
        run_inputs,
        recipe=replace(
            recipe,
            space=SpaceConfig(_SPACE, options),
            train=replace(
                recipe.train,
                weights=None,
                layer_rates={},
                epochs=epochs,
                budget_minutes=minutes,
                workers=0,
            ),
            search=replace(recipe.search, evaluator="train", workers=0, timeout_s=None),
        ),
        searched=space,
        evaluator=TrainEvaluator,
    )


def _budget(recipe: Recipe, cores: int) -> tuple[float | None, float | None]:
    """Return epochs and minutes: those of a candidate, or its share of the supernet's training."""
    epochs, minutes = recipe.train.epochs, recipe.train.budget_minutes
    if recipe.deploy.reference_minutes is not None:
        return None, recipe.deploy.reference_minutes
    if minutes is None:
        return epochs, None
    if recipe.search.evaluator == "supernet":
        minutes = minutes / recipe.deploy.top + (recipe.deploy.finetune_minutes or 0.0)
    else:
        minutes *= _ALL_CORES if cores > 1 else 1.0
    return epochs, minutes


def _trial(space: SearchSpace, architecture: Architecture) -> Scored:
    workload = space.workload(architecture)
    counted = {name: count(workload) for name, count in COUNTED.items()}
    return Scored(0, Candidate.of(architecture), {}, {}, {}, counted, feasible=True)
