"""Reference network of a run, tested, exported, measured and packaged like a finalist.

It shows whether the search found anything better. If the networks start from trained weights, it is
the model that these are from, as it was given; and if targets have smaller number formats, also the
model converted to these, which is what one gets without a search. Otherwise it is MobileNetV3-Small
(Howard et al., ICCV 2019, table 2), as wide as the limits allow, trained alone with the settings of
the candidates.

If the search trains each candidate alone on several workers, one of them trains the reference
network first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hwnas.atomic import replacing_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.targets.machine import processor_of
from hwnas.deploy.targets.target import Target
from hwnas.errors import HwnasError
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
from hwnas.search_spaces.space.precision import PRECISION, PrecisionSpace
from hwnas.stages.finalists.failures import Failures
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
    "references_of",
    "referencing",
    "with_reference",
]

REFERENCE: Literal["reference"] = "reference"
"""Name of the stage, of the bundle's folder, and of the network for ``hwnas export --pick``."""

GIVEN_MODEL = "the given model"
"""Name of the reference network for the user, if the networks start from its weights."""

WIDTHS = (0.35, 0.5, 0.75, 1.0)
"""Width multipliers; the largest one that meets the limits is used."""

_SPACE = "mobilenet"
_PRESET = "mobilenet-v3-small"
_ALL_CORES = 0.6  # share of a candidate's minutes on one core; two cores are not twice as fast


def referencing(job: Job, goal: SearchGoal) -> RunStage:
    """Return the stage that makes the bundle of the reference network."""
    output = job.folder.output(goal.target)
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
        with tempfile.TemporaryDirectory() as scratch, torch_threads(os.cpu_count() or 1):
            made = (_given_model if given else _trained)(job, goal, Path(scratch), advance)
            for earlier in output.glob(f"{_converted('*')}/"):
                shutil.rmtree(earlier)
            for name, bundle in made.items():
                with replacing_folder(output / name) as temporary:
                    for file in bundle.iterdir():
                        # The folder for temporary files may be on another file system.
                        shutil.move(file, temporary / file.name)

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
    return references_of(job, goal).get(REFERENCE)


def references_of(job: Job, goal: SearchGoal) -> dict[str, Bundle]:
    """Return the bundles of the reference network and of its conversions, by name.

    There are none if the reference network is not requested or not yet made.
    """
    output = job.folder.output(goal.target)
    names = [REFERENCE, *map(_converted, goal.number_formats[:-1])]
    made = [name for name in names if (output / name / "bundle.json").exists()]
    wanted = job.recipe.deploy.reference and REFERENCE in made
    return {name: Bundle.load(output / name) for name in made} if wanted else {}


def reference_name(run_inputs: RunInputs, bundle: Bundle) -> str:
    """Return the name of a run's reference network, for the user."""
    if run_inputs.space.pretrained:
        return GIVEN_MODEL
    return f"MobileNetV3-Small x{bundle.architecture.as_dict()['width']:g} trained alone"


def _converted(number_format: str) -> str:
    """Return the name of the reference network in a smaller number format than its own."""
    return f"{REFERENCE}-{number_format}"


def _given_model(
    job: Job, goal: SearchGoal, folder: Path, advance: ProgressCallback
) -> dict[str, Path]:
    """Bundle the model that the weights of the space are from, in each number format of the goal.

    Returns:
        Folders of the bundles by name. Formats to which the model cannot be converted are left out.
    """
    space, file = job.run_inputs.space, folder / "weights.safetensors"
    whole = space.largest()
    save_weights(file, space.build(whole).state_dict(), space.fingerprint)
    *smaller, _ = goal.number_formats
    formats = PrecisionSpace(goal.number_formats)
    named = {REFERENCE: Candidate.of(whole)} | {
        _converted(each): Candidate.of(whole, **{PRECISION: formats.architecture_of(each)})
        for each in smaller
    }
    failed: dict[str, HwnasError] = {}
    for name, candidate in named.items():
        failures = None if name == REFERENCE else Failures(failed)
        trials, weights = [_trial(space, candidate)], {candidate.id: [file]}
        bundle_trained(job, goal, trials, weights, folder, advance, failures)
    for error in failed.values():
        job.reporter.note(f"{GIVEN_MODEL} cannot be converted: {error}")
    return {name: folder / each.id for name, each in named.items() if each.id not in failed}


def _trained(
    job: Job, goal: SearchGoal, folder: Path, advance: ProgressCallback
) -> dict[str, Path]:
    """Train and bundle MobileNetV3-Small; return the bundle's folder by name."""
    made = _reference_job(job)
    space = made.run_inputs.space
    trial = _trial(space, Candidate.of(_choose_width(made.run_inputs, goal, advance)))
    make_bundles(made, goal, [trial], None, folder, advance)
    return {REFERENCE: folder / trial.candidate.id}


def _choose_width(
    run_inputs: RunInputs, goal: SearchGoal, advance: ProgressCallback
) -> Architecture:
    """Return the widest network that meets the limits, or else the narrowest."""
    space, objectives = run_inputs.space, limited(goal.objectives)
    if not objectives:
        return space.largest()
    for width in reversed(WIDTHS):
        architecture = space.architecture({**space.largest().as_dict(), "width": width})
        advance(0.0, f"measuring whether width {width:g} meets the limits")
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


def _trial(space: SearchSpace, candidate: Candidate) -> Scored:
    workload = space.workload(candidate.network)
    counted = {name: count(workload) for name, count in COUNTED.items()}
    return Scored(0, candidate, {}, {}, {}, counted, feasible=True)
