"""Fine-tuning of the finalists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hwnas.errors import ArtifactError, HwnasError, RunError
from hwnas.hashing import content_hash
from hwnas.identity import Identity, may_reuse
from hwnas.progress import ProgressCallback
from hwnas.recipe.keys import code_of
from hwnas.search import Scored
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.engine.devices import device_here, working_device
from hwnas.search.evaluation.evaluate import own_training, train_network, weights_hash
from hwnas.search.evaluation.settling import settle
from hwnas.search.training import (
    NetworkStep,
    Teacher,
    TrainConfig,
    save_weights,
    teacher_of,
    weights_identity,
)
from hwnas.search_spaces import Candidate
from hwnas.search_spaces.space.precision import as_trained
from hwnas.stages.finalists.failures import Failures
from hwnas.stages.finalists.shortlist import is_own_fault
from hwnas.stages.job import Job
from hwnas.stages.run_inputs import RunInputs

__all__ = [
    "fine_tune",
    "inherited_weights",
    "train_finalist",
    "tuned_identity",
    "weights_path",
]

_RECALIBRATION_IMAGES = 2048


def fine_tune(
    job: Job,
    finalists: Sequence[Scored],
    weights: Mapping[str, Tensor] | None,
    advance: ProgressCallback,
    failures: Failures,
) -> dict[str, list[Path]]:
    """Return the files with the weights of the finalists by id, one for each seed.

    Finalists that differ in their number format only share their weights. A finalist fails if all
    of its fine-tunings fail.
    """
    tasks = []
    for candidate in dict.fromkeys(as_trained(trial.candidate) for trial in finalists):
        inherited = inherited_weights(job, candidate, weights)
        for number in range(job.recipe.deploy.finetune_seeds):
            path = weights_path(job, candidate, number)
            tasks.append((candidate, inherited, path, number))
    tuned: dict[str, list[Path]] = {}
    failed: dict[str, HwnasError] = {}
    shared = job.run_inputs, None if weights is None else _teacher(job.run_inputs)
    gpus = job.recipe.deploy.gpus_per_worker
    outcomes = map_tasks(_try_to_tune, shared, tasks, job.recipe.workers, gpus)
    for done, ((candidate, *_), outcome) in enumerate(zip(tasks, outcomes, strict=True), start=1):
        if isinstance(outcome, HwnasError):
            failed[candidate.id] = outcome
        else:
            tuned.setdefault(candidate.id, []).append(outcome)
        advance(0.5 * done / len(tasks), f"fine-tuned {done}/{len(tasks)}")
    found: dict[str, list[Path]] = {}
    for trial in finalists:
        name, trained = trial.candidate.id, as_trained(trial.candidate).id
        if trained in tuned:
            found[name] = tuned[trained]
        else:
            failures.take(name, failed[trained])
    return found


def weights_path(job: Job, candidate: Candidate, number: int = 0) -> Path:
    """Return the path of the weights of a finalist's fine-tuning; its folder is made.

    Args:
        job: Run of the finalist.
        candidate: The finalist.
        number: Number of the fine-tuning, from 0; each has a seed of its own.
    """
    folder = job.folder.path.absolute() / "finalists"
    folder.mkdir(parents=True, exist_ok=True)
    name = as_trained(candidate).id
    return folder / f"{name}{f'-{number}' if number else ''}.safetensors"


def inherited_weights(
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
    on = teacher.to(device_here(run_inputs.recipe.deploy.gpus_per_worker))
    return on.prepared(config.teacher_sees, run_inputs.task, run_inputs.data.train).to("cpu")


def _try_to_tune(
    shared: tuple[RunInputs, Teacher | None],
    candidate: Candidate,
    inherited: Mapping[str, Tensor] | None,
    path: Path,
    number: int,
) -> Path | HwnasError:
    """Return the result of `train_finalist`, or its error, so that other candidates continue."""
    try:
        return train_finalist(shared, candidate, inherited, path, number)
    except HwnasError as error:
        if is_own_fault(error):
            return error
        raise


def train_finalist(
    shared: tuple[RunInputs, Teacher | None],
    candidate: Candidate,
    inherited: Mapping[str, Tensor] | None,
    path: Path,
    number: int = 0,
) -> Path:
    """Fine-tune a candidate with inherited weights, or train it from scratch without them.

    An existing file that was made from the same inputs is reused.

    Args:
        shared: Inputs of the run, and the teacher of fine-tuning, if any.
        candidate: Candidate of the run's space.
        inherited: Weights to start with.
        path: File for the weights.
        number: Number of the fine-tuning, from 0, which is added to the seed of the run.

    Returns:
        The path.
    """
    run_inputs, teacher = shared
    identity = tuned_identity(run_inputs, candidate, inherited, number)
    if _is_tuned(path, identity):
        return path
    recipe, space, task = run_inputs.recipe, run_inputs.space, run_inputs.task
    data, shape = run_inputs.data, space.input_shape(candidate.network)
    seed = recipe.seed + number
    torch.manual_seed(seed)
    device, network = working_device(), space.build(candidate.network)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    config: TrainConfig | None = own_training(recipe.train, run_inputs.recipe_space, candidate)
    if inherited is not None:
        network.load_state_dict(inherited)
        config = recipe.fine_tuning
    if config is not None:
        teacher = None if teacher is None else teacher.to(device)
        step = NetworkStep.of(network, task, shape, config, teacher)
        train_network(
            *(step, data, config, seed),
            recalibration_images=_RECALIBRATION_IMAGES,
            fix_statistics=inherited is not None and recipe.deploy.fixes_statistics,
        )
    else:
        settle(network, task, data, shape, _RECALIBRATION_IMAGES)
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


def tuned_identity(
    run_inputs: RunInputs,
    candidate: Candidate,
    inherited: Mapping[str, Tensor] | None,
    number: int = 0,
) -> Identity:
    """Return the identity of the inputs that the weights of a finalist depend on."""
    recipe, config = run_inputs.recipe, run_inputs.recipe.fine_tuning
    training = {} if config is None else config.identity
    if inherited is None:
        training = own_training(recipe.train, run_inputs.recipe_space, candidate).identity
    elif training and recipe.deploy.fixes_statistics:
        training["norm_statistics"] = "fixed"
    return Identity.of(
        candidate=as_trained(candidate).id,
        space=run_inputs.space.fingerprint,
        task=content_hash(run_inputs.task),
        data=run_inputs.data.fingerprint,
        inherited="none" if inherited is None else weights_hash(inherited),
        training=training,
        seed=str(recipe.seed + number),
        code=code_of(recipe, "finalists"),
    )
