"""Evaluators of candidates: scoring with a supernet's weights, or training each alone."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError, NonFiniteOutput
from hwnas.hashing import content_hash
from hwnas.identity import Identity, may_reuse
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData, Split
from hwnas.search.engine.devices import working_device
from hwnas.search.engine.remote_files import fetched
from hwnas.search.engine.threads import torch_threads
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.task import Task
from hwnas.search.training.checkpoint import (
    checkpoint_run,
    differing_keys,
    load_weights,
    save_weights,
    weights_identity,
)
from hwnas.search.training.trainer import NetworkStep, TrainConfig, fit
from hwnas.search_spaces import Candidate, SearchSpace, Supernet, TrainingSpace, batch_norms

__all__ = [
    "PLUGINS",
    "Evaluation",
    "Evaluator",
    "Fidelity",
    "KeepsWeights",
    "SupernetEvaluator",
    "TrainEvaluator",
    "check_finite",
    "merit",
    "own_training",
    "recalibrate",
    "score",
    "shorter",
    "train_network",
    "weights_hash",
]

SplitName = Literal["validation", "test"]

_ALONE_SCHEMA = 2
"""Schema number of the results of `TrainEvaluator`; increased when these change."""
_RECALIBRATION_IMAGES = 512
_VALUES_AT_ONCE = 2**26
"""Most pixel values in a batch: enough for 256 images of 224 x 224 pixels with 3 channels."""


@dataclass(frozen=True)
class Fidelity:
    """Fidelity of an evaluation: the number of images, and the share of the full cost.

    Attributes:
        images: Number of images of the split to score; None for all.
        share: Share of the evaluator's full cost, in (0, 1]: share of the images if a supernet's
            weights are used, share of the epochs if each network is trained alone.
    """

    images: int | None = None
    share: float = 1.0

    @property
    def key(self) -> str:
        """Short name of the fidelity, e.g. ``"images=2000"``."""
        return f"images={self.images or 'all'}{f',share={self.share:g}' * (self.share != 1)}"

    def of(self, split: Split) -> Split:
        """Return the images of a split to score."""
        if self.share == 1:
            return split if self.images is None else split.first(self.images)
        images = len(split) if self.images is None else min(self.images, len(split))
        return split.first(max(2, round(self.share * images)))


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one candidate, with their standard errors.

    Attributes:
        values: Value of each metric of the task, in the metric's unit.
        standard_errors: Standard error of each value, from the sampling of images; see
            `MetricValue`.
        n: Number of images scored.
        split: Name of the split that the images are from.
        wall_s: Wall time of the evaluation, in seconds.
        cpu_s: CPU time of the evaluation, in seconds.
    """

    values: Mapping[str, float]
    standard_errors: Mapping[str, float]
    n: int
    split: SplitName
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields of this evaluation."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation from the JSON object that `to_json` made."""
        return cls(**data)


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


def score(
    network: nn.Module,
    task: Task,
    split: Split,
    input_shape: tuple[int, int, int],
    name: SplitName,
    batch_size: int = 256,
) -> Evaluation:
    """Score a network on all images of a split.

    Args:
        network: Network from (N, *input_shape) to outputs of the task; put into evaluation mode.
        task: Task that gives preprocessing and metrics.
        split: Images and targets to score on.
        input_shape: Channels, height and width that the network takes.
        name: Name of the split.
        batch_size: Largest number of images in a batch.

    Raises:
        NonFiniteOutput: An output of the network is NaN or infinite. Metrics would not show it: the
            argmax of such outputs is still a class.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    network.eval()
    metrics = SplitMetrics(task)
    with torch.no_grad():
        for images, targets in _batches(split, task, input_shape, batch_size, _device(network)):
            outputs = network(images).float().cpu()
            check_finite(outputs, f"{name} images")
            metrics.add(outputs, targets)
    found = metrics.values()
    return Evaluation(
        {metric.name: found[metric.name].value for metric in task.metrics},
        {metric.name: found[metric.name].standard_error for metric in task.metrics},
        len(split),
        name,
        time.perf_counter() - wall,
        time.process_time() - cpu,
    )


def check_finite(outputs: Tensor, of: str) -> None:
    """Raise if an output is NaN or infinite.

    Args:
        outputs: Outputs for N images, of shape (N, ...).
        of: Description of these images, for the message.

    Raises:
        NonFiniteOutput: An output is NaN or infinite.
    """
    if not bool(outputs.isfinite().all()):
        broken = ~outputs.flatten(1).isfinite().all(dim=1)
        what = "NaN" if bool(outputs.isnan().any()) else "infinity"
        raise NonFiniteOutput(
            f"the network outputs {what} for {int(broken.sum())} of {len(outputs)} {of} in a "
            "batch, so it has no score; lower train.learning_rate, or correct the operation in the "
            "network that divides by zero or overflows"
        )


def _device(network: nn.Module) -> torch.device:
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def _batches(
    split: Split,
    task: Task,
    input_shape: tuple[int, int, int],
    batch_size: int,
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield preprocessed images, on a device, and their targets, on the CPU."""
    preprocessing = task.preprocessing.at(*input_shape[1:])
    largest = max(split.images[0].size, math.prod(input_shape))
    batch_size = max(1, min(batch_size, _VALUES_AT_ONCE // largest))
    # Batches of equal size: a last batch of one image would have no variance for BatchNorm.
    for rows in np.array_split(np.arange(len(split)), math.ceil(len(split) / batch_size)):
        images, targets = split.take(rows)
        yield preprocessing(torch.from_numpy(images).to(device)), torch.from_numpy(targets)


def recalibrate(
    network: nn.Module,
    task: Task,
    split: Split,
    input_shape: tuple[int, int, int],
    batch_size: int = 256,
) -> None:
    """Recalibrate BatchNorm: set its running statistics to their average over images.

    The average is cumulative: every batch has the same weight, and earlier statistics have none
    (Yu and Huang, ICCV 2019).

    Args:
        network: Network, or supernet whose active subnet is recalibrated; left in evaluation mode.
        task: Task that gives the preprocessing.
        split: Training images, used without augmentation.
        input_shape: Channels, height and width that the network takes.
        batch_size: Largest number of images in a batch.
    """
    network.eval()
    norms = batch_norms(network)
    if not norms:
        return
    before = [norm.momentum for norm in norms]
    batches = _batches(split, task, input_shape, batch_size, _device(network))
    with torch.no_grad():
        for k, (images, _) in enumerate(batches):
            for norm in norms:
                norm.train()
                norm.momentum = 1 / (k + 1)
            network(images)
    for norm, momentum in zip(norms, before, strict=True):
        norm.eval()
        norm.momentum = momentum


def train_network(
    step: NetworkStep,
    data: ImageData,
    config: TrainConfig,
    seed: int,
    *,
    recalibration_images: int = _RECALIBRATION_IMAGES,
    checkpoint: Path | None = None,
    run: str = "",
    until: float = 1.0,
) -> None:
    """Train a network, and recalibrate its BatchNorm.

    Args:
        step: Step of the network's training.
        data: Training images; validation images decide when the training ends, if
            ``config.patience`` is given.
        config: Training settings.
        seed: Seed of the random numbers.
        recalibration_images: Number of training images to recalibrate on.
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
    images = data.train.first(recalibration_images)

    def validate(network: nn.Module) -> float:
        recalibrate(network, task, images, shape)
        found = score(network, task, data.validation, shape, "validation")
        return merit(task, found)

    fit(
        *(step.network, step, data.train, config, seed),
        checkpoint=checkpoint,
        run=run,
        until=until,
        validate=validate,
    )
    recalibrate(step.network, task, images, shape)


def merit(task: Task, found: Evaluation) -> float:
    """Return the first metric of a task, negated if lower is better."""
    metric = task.metrics[0]
    value = found.values[metric.name]
    return value if metric.direction == "maximize" else -value


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
    """

    space: SearchSpace
    task: Task
    data: ImageData
    weights: Mapping[str, npt.NDArray[Any]]
    recalibration_images: int = 512
    threads: int = 1

    @cached_property
    def key(self) -> str:
        """Hash of the space, the weights, the recalibration, the data and the task."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in self.weights.items()}
        learned = self.space.fingerprint, self.task, self.data.fingerprint
        return content_hash(*learned, weights_hash(tensors), self.recalibration_images)

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
        """
        with torch_threads(self.threads):
            shape = self.space.input_shape(candidate.network)
            network = self._supernet.extract(candidate.network)
            network.to(working_device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
            recalibrate(network, self.task, self.data.train.first(self.recalibration_images), shape)
            return score(network, self.task, fidelity.of(self.data.validation), shape, "validation")

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
    """

    space: SearchSpace
    task: Task
    data: ImageData
    train: TrainConfig
    seed: int = 0
    recipe: TrainingSpace | None = None
    folder: Path | None = None
    threads: int = 1

    @cached_property
    def key(self) -> str:
        """Hash of space, task, data, training settings and seed.

        A candidate's own training settings are part of the candidate's id.
        """
        learned = self.space.fingerprint, self.task, self.data.fingerprint
        return content_hash(_ALONE_SCHEMA, *learned, self.train.identity, self.seed)

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Build, train and score the candidate's network.

        The share of the fidelity shortens the training, never the scoring.

        Raises:
            DivergedError: The training loss is not a number.
            NonFiniteOutput: An output of the network is NaN or infinite.
        """
        shape, found = self.space.input_shape(candidate.network), []
        with torch_threads(self.threads):
            for number, data in enumerate(self.data.rounds):
                network = self.trained(candidate, fidelity.share, number)
                images = replace(fidelity, share=1.0).of(data.validation)
                found.append(score(network, self.task, images, shape, "validation"))
                if self.folder is not None and fidelity.share == 1 and number == 0:
                    weights = network.state_dict()
                    save_weights(self._kept(candidate), weights, self._identity(candidate).key)
        return pooled(found)

    def trained(self, candidate: Candidate, share: float = 1.0, number: int = 0) -> nn.Module:
        """Return the candidate's network, trained for a share of the full training.

        Args:
            candidate: Candidate of the network.
            share: Share of the training, in (0, 1].
            number: Number of the round of the cross-validation, from 0.
        """
        torch.manual_seed(self.seed)
        shape = self.space.input_shape(candidate.network)
        network = self.space.build(candidate.network)
        network.to(working_device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
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
        return Identity.of(evaluator=self.key, candidate=candidate.id)

    def _kept(self, candidate: Candidate) -> Path:
        assert self.folder is not None
        return self.folder / f"{candidate.id}.safetensors"

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
