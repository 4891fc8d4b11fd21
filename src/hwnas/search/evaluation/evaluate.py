"""Evaluators of candidates: scoring with a supernet's weights, or training each alone."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hwnas.atomic import locked
from hwnas.errors import ArtifactError, ConfigError
from hwnas.hashing import content_hash
from hwnas.identity import Identity, may_reuse
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.engine.devices import working_device
from hwnas.search.engine.remote_files import fetched
from hwnas.search.engine.threads import torch_threads
from hwnas.search.evaluation.converted import scorable
from hwnas.search.evaluation.scoring import (
    Evaluation,
    Fidelity,
    merit,
    recalibrate,
    score,
)
from hwnas.search.evaluation.settling import fit_exit, settle
from hwnas.search.tasks.task import Task
from hwnas.search.training.checkpoint import (
    checkpoint_run,
    differing_keys,
    load_weights,
    save_weights,
    weights_identity,
)
from hwnas.search.training.trainer import NetworkStep, TrainConfig, fit
from hwnas.search.training.tune_mode import fixed_statistics
from hwnas.search_spaces import Candidate, SearchSpace, Supernet, TrainingSpace
from hwnas.search_spaces.space.precision import as_trained, own_format

__all__ = [
    "PLUGINS",
    "Evaluator",
    "KeepsWeights",
    "SupernetEvaluator",
    "TrainEvaluator",
    "own_training",
    "shorter",
    "train_network",
    "weights_hash",
    "with_format",
]

_ALONE_SCHEMA = 2
"""Schema number of the results of `TrainEvaluator`; increased when these change."""
_RECALIBRATION_IMAGES = 512


@runtime_checkable
class KeepsWeights(Protocol):
    """Evaluator that trains networks and keeps their weights."""

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return the trained weights of a candidate; None if they are not kept."""


class Evaluator(Protocol):
    """Scorer of candidates on the validation split; picklable, so that workers can hold it."""

    @property
    def key(self) -> str:
        """Hash of everything that the score depends on except the candidate and the fidelity."""

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Return the evaluation of one candidate."""


def train_network(
    step: NetworkStep,
    data: ImageData,
    config: TrainConfig,
    seed: int,
    *,
    recalibration_images: int = _RECALIBRATION_IMAGES,
    fix_statistics: bool = False,
    checkpoint: Path | None = None,
    run: str = "",
    until: float = 1.0,
) -> None:
    """Train a network, recalibrate its BatchNorm, and fit its early exit if it has one.

    Args:
        step: Step of the network's training.
        data: Training images; validation images fit an early exit, and decide when the training
            ends, if ``config.patience`` is given.
        config: Training settings.
        seed: Seed of the random numbers.
        recalibration_images: Number of training images to recalibrate on.
        fix_statistics: Whether BatchNorm is recalibrated before the training, and keeps these
            statistics in it; otherwise the training uses those of each batch.
        checkpoint: Checkpoint file; if it exists, the training resumes from it.
        run: Hash of the network, the data and the settings; a checkpoint of another hash is
            refused.
        until: Share of the budget, in (0, 1], at which to stop.

    Raises:
        DivergedError: A loss is not finite.
        DeviceError: Memory ran out, even with half as many images at a time.
        NonFiniteOutput: An output for a validation image is NaN or infinite.
        RunError: The checkpoint belongs to another training.
        ArtifactError: The checkpoint is damaged.
    """
    task, shape = step.task, step.input_shape

    def finish() -> None:
        if fix_statistics:
            fit_exit(step.network, task, data, shape)
        else:
            settle(step.network, task, data, shape, recalibration_images)

    def validate(network: nn.Module) -> float:
        finish()
        found = score(network, task, data.validation, shape, "validation")
        return merit(task, found)

    if fix_statistics:
        recalibrate(step.network, task, data.train.first(recalibration_images), shape)
    with fixed_statistics(step.network) if fix_statistics else contextlib.nullcontext():
        fit(
            *(step.network, step, data.train, config, seed),
            checkpoint=checkpoint,
            run=run,
            until=until,
            validate=validate,
        )
    finish()
    step.network.eval()


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Return a hash of a state dict: names, shapes, dtypes and values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class SupernetEvaluator:
    """Evaluator that scores candidates with the weights that they inherit from a supernet.

    BatchNorm is recalibrated for each candidate on training images without augmentation. Candidates
    are scored on the validation split.

    Attributes:
        space: Search space of the candidates' networks.
        task: Task that gives preprocessing and metrics.
        data: Data set: training images to recalibrate on, validation images to score.
        weights: State dict of ``Supernet.shared``, as arrays, so that workers on one machine share
            them through Ray's object store.
        recalibration_images: Number of training images to recalibrate on.
        threads: Number of CPU threads of one evaluation.
        number_format: Format that networks are scored in (`scorable`), unless candidates name their
            own; None if all of them do.
    """

    space: SearchSpace
    task: Task
    data: ImageData
    weights: Mapping[str, npt.NDArray[Any]]
    recalibration_images: int = 512
    threads: int = 1
    number_format: str | None = "fp32"

    @cached_property
    def key(self) -> str:
        """Hash of the space, the weights, the recalibration, the data, the task and the format."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in self.weights.items()}
        learned = self.space.fingerprint, self.task, self.data.fingerprint
        key = content_hash(*learned, weights_hash(tensors), self.recalibration_images)
        return with_format(key, self.number_format)

    @cached_property
    def _supernet(self) -> Supernet:
        supernet = self.space.supernet()
        weights = {name: torch.from_numpy(np.array(a)) for name, a in self.weights.items()}
        different = differing_keys(weights, supernet.shared.state_dict())
        if different:
            raise ConfigError(
                f"the weights do not belong to the supernet of space {self.space.fingerprint}: "
                f"{different}"
            )
        supernet.shared.load_state_dict(weights)
        return supernet.eval()

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Extract, recalibrate and score the candidate's network.

        Raises:
            NonFiniteOutput: An output of the network is NaN or infinite.
            ArtifactError: The network cannot be converted to the number format.
        """
        with torch_threads(self.threads):
            shape = self.space.input_shape(candidate.network)
            network = self._supernet.extract(candidate.network)
            network.to(working_device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
            settle(network, self.task, self.data, shape, self.recalibration_images)
            scored = fidelity.of(self.data.validation)
            wanted = own_format(candidate) or self.number_format
            in_format = wanted, self.task, self.data.train, shape
            with scorable(network, *in_format) as shipped:
                return score(shipped, self.task, scored, shape, "validation")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_supernet"}


@dataclass(frozen=True)
class TrainEvaluator:
    """Evaluator that trains each candidate alone.

    At a share of the full cost, the training stops after that share; the learning rate schedule
    stays that of the full training. If a folder is given, a candidate that is evaluated again at a
    larger share continues from its checkpoint. Successive halving then repeats no training, and its
    result equals that of an uninterrupted training. A network is scored with the moving average of
    its weights, if there is one, and with BatchNorm recalibrated at the resolution of scoring. If
    the data have folds, each candidate is trained and scored once in each round of the
    cross-validation, and its values are the means over all images.

    Attributes:
        space: Search space of the candidates' networks.
        task: Task that gives preprocessing, losses and metrics.
        data: Data set: training images to learn from, validation images to score.
        train: Training settings of all candidates; a candidate's own settings override them.
        seed: Seed of all random draws.
        recipe: Space of the candidates' role ``recipe``; None if they have no such role.
        folder: Folder for checkpoints and trained weights; nothing is kept if None.
        threads: Number of CPU threads of one evaluation.
        number_format: Format that networks are scored in (`scorable`), unless candidates name their
            own; None if all of them do.
    """

    space: SearchSpace
    task: Task
    data: ImageData
    train: TrainConfig
    seed: int = 0
    recipe: TrainingSpace | None = None
    folder: Path | None = None
    threads: int = 1
    number_format: str | None = "fp32"

    @cached_property
    def key(self) -> str:
        """Hash of space, task, data, training settings, seed and number format.

        A candidate's own training settings and number format are part of the candidate's id.
        """
        return with_format(self._training_key, self.number_format)

    @cached_property
    def _training_key(self) -> str:
        learned = self.space.fingerprint, self.task, self.data.fingerprint
        return content_hash(_ALONE_SCHEMA, *learned, self.train.identity, self.seed)

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Build, train and score the candidate's network.

        The share of the fidelity shortens the training, never the scoring.

        Raises:
            DivergedError: The training loss is not a number.
            NonFiniteOutput: An output of the network is NaN or infinite.
            ArtifactError: The network cannot be converted to the number format.
        """
        shape, found = self.space.input_shape(candidate.network), []
        scored = replace(fidelity, share=1.0)
        with torch_threads(self.threads):
            for number, data in enumerate(self.data.rounds):
                network = self.trained(candidate, fidelity.share, number)
                wanted = own_format(candidate) or self.number_format
                in_format = wanted, self.task, data.train, shape
                with scorable(network, *in_format) as shipped:
                    images = scored.of(data.validation)
                    found.append(score(shipped, self.task, images, shape, "validation"))
        return pooled(found)

    def trained(self, candidate: Candidate, share: float = 1.0, number: int = 0) -> nn.Module:
        """Return the candidate's network, trained for a share of the full training.

        If a folder is given, the weights of a full training are kept there, and candidates that
        differ in their number format only share them; one of them waits for the other.

        Args:
            candidate: Candidate of the network.
            share: Share of the training, in (0, 1].
            number: Number of the round of the cross-validation, from 0.
        """
        if self.folder is None or share < 1 or number > 0:
            return self._trained(candidate, share, number)
        path, kept = self._kept(candidate), None
        with locked(self.folder / "locks" / path.stem):
            with contextlib.suppress(ArtifactError):  # a damaged file is written again
                kept = self.kept_weights(candidate)
            if kept is None:
                network = self._trained(candidate, share, number)
                save_weights(path, network.state_dict(), self._identity(candidate).key)
                return network
        network = self._built(candidate)
        network.load_state_dict(kept)
        return network.eval()

    def _built(self, candidate: Candidate) -> nn.Module:
        torch.manual_seed(self.seed)
        network = self.space.build(candidate.network)
        network.to(working_device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def _trained(self, candidate: Candidate, share: float, number: int) -> nn.Module:
        network, shape = self._built(candidate), self.space.input_shape(candidate.network)
        train = own_training(self.train, self.recipe, candidate)
        step = NetworkStep.of(network, self.task, shape, train)
        run = self._identity(candidate).key
        with torch_threads(self.threads):
            train_network(
                *(step, self.data.rounds[number], train, self.seed),
                checkpoint=self._checkpoint(candidate, run, number),
                run=run,
                until=share,
            )
        return network

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return the trained weights of a candidate; None if they are not kept.

        Raises:
            ArtifactError: The file is damaged.
        """
        if self.folder is None or not (path := self._kept(candidate)).exists():
            return None
        wanted = self._identity(candidate)
        return load_weights(path) if may_reuse(weights_identity(path), wanted) else None

    def _identity(self, candidate: Candidate) -> Identity:
        return Identity.of(evaluator=self._training_key, candidate=as_trained(candidate).id)

    def _kept(self, candidate: Candidate) -> Path:
        assert self.folder is not None
        return self.folder / f"{as_trained(candidate).id}.safetensors"

    def _checkpoint(self, candidate: Candidate, run: str, number: int) -> Path | None:
        """Return the path of a candidate's checkpoint; remove a checkpoint of another run there."""
        if self.folder is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        fold = f"-{number}" if number else ""
        path = self.folder / f"{candidate.id}{fold}.checkpoint.safetensors"
        if fetched(path) and checkpoint_run(path) != run:
            path.unlink(missing_ok=True)
        return path


def with_format(key: str, number_format: str | None) -> str:
    """Return the key of scores in a number format; scores in fp32 have the given key.

    So have those in several formats (None), since the id of a candidate then names its format.
    """
    return key if number_format in (None, "fp32") else content_hash(key, number_format)


def pooled(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation of all images of several evaluations, each of other images.

    Values are means, weighted by the numbers of images; standard errors are those of independent
    images. Metrics that are no means over images, such as an area under a curve, are means over the
    evaluations.
    """
    if len(evaluations) == 1:
        return evaluations[0]
    n = sum(each.n for each in evaluations)
    first = evaluations[0]
    return replace(
        first,
        values={
            name: sum(each.n * each.values[name] for each in evaluations) / n
            for name in first.values
        },
        standard_errors={
            name: math.hypot(*(each.n * each.standard_errors[name] for each in evaluations)) / n
            for name in first.standard_errors
        },
        n=n,
        wall_s=sum(each.wall_s for each in evaluations),
        cpu_s=sum(each.cpu_s for each in evaluations),
    )


def own_training(
    train: TrainConfig, recipe: TrainingSpace | None, candidate: Candidate
) -> TrainConfig:
    """Return the training settings of a candidate.

    Args:
        train: Settings of all candidates.
        recipe: Space of the role ``recipe``; None if there is no such role.
        candidate: Candidate, whose own settings in that role override those of ``train``.
    """
    return train if recipe is None else train.adjusted(recipe.values(candidate["recipe"]))


def shorter(train: TrainConfig, share: float) -> TrainConfig:
    """Return the settings with budget and learning rate schedule scaled to a share."""
    given = {name: getattr(train, name) for name in ("epochs", "budget_minutes")}
    return replace(train, **{name: share * v for name, v in given.items() if v is not None})


PLUGINS = (
    Plugin(
        "evaluator",
        "supernet",
        SupernetEvaluator,
        "Score each candidate with the weights of a trained supernet",
    ),
    Plugin("evaluator", "train", TrainEvaluator, "Train each candidate alone"),
)
