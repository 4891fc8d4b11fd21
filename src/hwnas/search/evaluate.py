"""How good a candidate is: scored by a supernet, or trained alone."""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hwnas.content import content_hash
from hwnas.errors import ConfigError, NonFiniteOutput
from hwnas.identity import Identity, may_reuse
from hwnas.search.data import ImageData, Split
from hwnas.search.delta_method import with_standard_errors
from hwnas.search.task import Task
from hwnas.search.threads import torch_threads
from hwnas.search.training.checkpoint import (
    checkpoint_run,
    differing_keys,
    load_weights,
    save_weights,
    weights_identity,
)
from hwnas.search.training.trainer import NetworkStep, TrainConfig, fit
from hwnas.search_spaces import Candidate, RecipeSpace, SearchSpace, Supernet, batch_norms

__all__ = [
    "Evaluation",
    "Evaluator",
    "Fidelity",
    "KeepsWeights",
    "SupernetEvaluator",
    "TrainEvaluator",
    "check_finite",
    "own_training",
    "recalibrate",
    "score",
    "shorter",
    "weights_hash",
]

SplitName = Literal["validation", "test"]

_ALONE_SCHEMA = 2
"""Of what `TrainEvaluator` finds; raised where that changes."""
_RECALIBRATION_IMAGES = 512
_VALUES_AT_ONCE = 2**26
"""Of images in a batch: 256 of 224 x 224 pixels with 3 channels, fewer of larger ones."""


@dataclass(frozen=True)
class Fidelity:
    """How thoroughly to evaluate.

    Attributes:
        images: How many of the split's images to score; None for all.
        share: Of the evaluator's full cost, in (0, 1]: of the images that are scored with a
            supernet's weights, of the epochs that a network is trained alone.
    """

    images: int | None = None
    share: float = 1.0

    @property
    def key(self) -> str:
        """A short name, e.g. ``"images=2000"``."""
        return f"images={self.images or 'all'}{f',share={self.share:g}' * (self.share != 1)}"

    def of(self, split: Split) -> Split:
        """The images of a split to score."""
        if self.share == 1:
            return split if self.images is None else split.first(self.images)
        images = len(split) if self.images is None else min(self.images, len(split))
        return split.first(max(2, round(self.share * images)))


@dataclass(frozen=True)
class Evaluation:
    """What was found out about one candidate.

    Attributes:
        values: Each metric of the task, in its unit.
        standard_errors: Of these, because other images would have given others; see
            `with_standard_errors`.
        n: Number of images.
        split: Which images.
        wall_s: Seconds it took.
        cpu_s: Seconds of CPU time it took.
    """

    values: Mapping[str, float]
    standard_errors: Mapping[str, float]
    n: int
    split: SplitName
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of this evaluation."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """The inverse of `to_json`."""
        return cls(**data)


@runtime_checkable
class KeepsWeights(Protocol):
    """An evaluator that trains networks and keeps them."""

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return what a candidate was trained to, if that is kept; None if it is not."""


class Evaluator(Protocol):
    """Scores candidates on the validation split; picklable, so that workers can hold it."""

    @property
    def key(self) -> str:
        """Hash of all that the score depends on, beside the candidate and the fidelity."""

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """The scores of one candidate."""


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
        network: (N, *input_shape) -> outputs of the task; put into evaluation mode.
        task: Gives preprocessing and metrics.
        split: The images.
        input_shape: Channels, height and width that the network takes.
        name: What the split is called.
        batch_size: Images at a time, at most.

    Raises:
        NonFiniteOutput: The network outputs something that is no finite number, which no metric
            would tell: the largest of such outputs is a class as good as any.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    network.eval()
    parts: defaultdict[str, list[Tensor]] = defaultdict(list)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with torch.no_grad():
        for images, targets in _batches(split, task, input_shape, batch_size):
            outputs = network(images.to(device)).float().cpu()
            check_finite(outputs, f"{name} images")
            for part, entries in task.statistics(outputs, targets).items():
                parts[part].append(entries)
    statistics = {part: torch.cat(entries) for part, entries in parts.items()}
    found = with_standard_errors(task.metric_values, statistics)
    return Evaluation(
        {metric.name: found[metric.name][0] for metric in task.metrics},
        {metric.name: found[metric.name][1] for metric in task.metrics},
        len(split),
        name,
        time.perf_counter() - wall,
        time.process_time() - cpu,
    )


def check_finite(outputs: Tensor, of: str) -> None:
    """Refuse outputs (N, ...) of which one is no finite number.

    Args:
        outputs: For N images.
        of: Which images these are, for the message.

    Raises:
        NonFiniteOutput: There is one.
    """
    if not bool(outputs.isfinite().all()):
        broken = ~outputs.flatten(1).isfinite().all(dim=1)
        what = "NaN" if bool(outputs.isnan().any()) else "infinity"
        raise NonFiniteOutput(
            f"the network outputs {what} for {int(broken.sum())} of {len(outputs)} {of} in a "
            "batch, so it has no score; train at a lower train.learning_rate, or mend what in the "
            "network divides or overflows"
        )


def _batches(
    split: Split, task: Task, input_shape: tuple[int, int, int], batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    preprocessing = task.preprocessing.at(*input_shape[1:])
    largest = max(split.images[0].size, math.prod(input_shape))
    batch_size = max(1, min(batch_size, _VALUES_AT_ONCE // largest))
    # Batches of equal size: a last one of one image would have no variance to normalise with.
    for rows in np.array_split(np.arange(len(split)), math.ceil(len(split) / batch_size)):
        images, targets = split.take(rows)
        yield preprocessing(images), torch.from_numpy(targets)


def recalibrate(
    network: nn.Module,
    task: Task,
    split: Split,
    input_shape: tuple[int, int, int],
    batch_size: int = 256,
) -> None:
    """Set the statistics of batch normalisation to their average over images.

    The average is cumulative: every batch has the same weight and what was there before has none
    (Yu and Huang, ICCV 2019).

    Args:
        network: A network, or a supernet for its active one; left in evaluation mode.
        task: Gives the preprocessing.
        split: Training images, taken as they are.
        input_shape: Channels, height and width that the network takes.
        batch_size: Images at a time, at most.
    """
    network.eval()
    norms = batch_norms(network)
    if not norms:
        return
    before = [norm.momentum for norm in norms]
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with torch.no_grad():
        for k, (images, _) in enumerate(_batches(split, task, input_shape, batch_size)):
            for norm in norms:
                norm.train()
                norm.momentum = 1 / (k + 1)
            network(images.to(device))
    for norm, momentum in zip(norms, before, strict=True):
        norm.eval()
        norm.momentum = momentum


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Hash of a state dict: names, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class SupernetEvaluator:
    """Scores candidates with the weights that they inherit from a supernet.

    Batch normalisation is recalibrated for each candidate on training images without augmentation;
    the score is that of the validation split.

    Attributes:
        space: Of the candidates' networks.
        task: Gives preprocessing and metrics.
        data: Training images to recalibrate on, validation images to score.
        weights: The state of ``Supernet.shared``, as arrays, so that workers on one machine share
            them through Ray's object store.
        recalibration_images: How many training images to recalibrate on.
        threads: CPU threads of one evaluation.
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
                f"the weights are those of another supernet than of space "
                f"{self.space.fingerprint}: {different}"
            )
        supernet.shared.load_state_dict(weights)
        return supernet.eval()

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Extract, recalibrate and score the candidate's network.

        Raises:
            NonFiniteOutput: It outputs something that is no finite number.
        """
        with torch_threads(self.threads):
            shape = self.space.input_shape(candidate.network)
            network = self._supernet.extract(candidate.network)
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            recalibrate(network, self.task, self.data.train.first(self.recalibration_images), shape)
            return score(network, self.task, fidelity.of(self.data.validation), shape, "validation")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_supernet"}


@dataclass(frozen=True)
class TrainEvaluator:
    """Trains each candidate alone.

    A share of the cost is a share of that training, which stops there with its learning rate as it
    is. Where a folder is given, a candidate that is evaluated again at a larger share goes on from
    there, so that successive halving costs nothing twice, and what it ends with is what training it
    in one go would have given. It is scored with the moving average of its weights, if there is
    one, and with batch normalisation recalibrated at the resolution at which it is scored.

    Attributes:
        space: Of the candidates' networks.
        task: Gives preprocessing, losses and metrics.
        data: Training images to learn from, validation images to score.
        train: How each candidate is trained, but for what its own recipe says.
        seed: Of everything random.
        recipe: The space of the candidates' role ``recipe``; None if they have no such role.
        folder: Where trainings and their results are kept; nothing is if None.
    """

    space: SearchSpace
    task: Task
    data: ImageData
    train: TrainConfig
    seed: int = 0
    recipe: RecipeSpace | None = None
    folder: Path | None = None

    @cached_property
    def key(self) -> str:
        """Hash of space, task, data and training; a candidate's own recipe is part of its id."""
        learned = self.space.fingerprint, self.task, self.data.fingerprint
        return content_hash(_ALONE_SCHEMA, *learned, self.train.identity, self.seed)

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Build, train and score the candidate's network; on all images at any share.

        Raises:
            DivergedError: Its training loss is not a number.
            NonFiniteOutput: It outputs something that is no finite number.
        """
        shape = self.space.input_shape(candidate.network)
        with torch_threads(1):
            network = self.trained(candidate, fidelity.share)
            images = replace(fidelity, share=1.0).of(self.data.validation)
            found = score(network, self.task, images, shape, "validation")
        if self.folder is not None and fidelity.share == 1:
            weights = network.state_dict()
            save_weights(self._kept(candidate), weights, self._identity(candidate).key)
        return found

    def trained(self, candidate: Candidate, share: float = 1.0) -> nn.Module:
        """The candidate's network, trained for a share of its time."""
        torch.manual_seed(self.seed)
        shape = self.space.input_shape(candidate.network)
        network = self.space.build(candidate.network)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        train = own_training(self.train, self.recipe, candidate)
        step = NetworkStep.of(network, self.task, shape, train)
        images, run = self.data.train, self._identity(candidate).key
        with torch_threads(1):
            fit(
                *(network, step, images, train, self.seed),
                checkpoint=self._checkpoint(candidate, run),
                run=run,
                until=share,
            )
            recalibrate(network, self.task, images.first(_RECALIBRATION_IMAGES), shape)
        return network

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return what a candidate was trained to, if that is kept; None if it is not.

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

    def _checkpoint(self, candidate: Candidate, run: str) -> Path | None:
        """Where its training is kept; one of something else is removed from there."""
        if self.folder is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{candidate.id}.checkpoint.safetensors"
        if path.exists() and checkpoint_run(path) != run:
            path.unlink(missing_ok=True)
        return path


def own_training(
    train: TrainConfig, recipe: RecipeSpace | None, candidate: Candidate
) -> TrainConfig:
    """How a candidate is trained.

    Args:
        train: What holds for all candidates.
        recipe: The space of the role ``recipe``; None if there is no such role.
        candidate: What its own recipe sets goes first.
    """
    return train if recipe is None else train.adjusted(recipe.values(candidate["recipe"]))


def shorter(train: TrainConfig, share: float) -> TrainConfig:
    """The same training for a share of its time, its learning rate going down in that time."""
    given = {name: getattr(train, name) for name in ("epochs", "budget_minutes")}
    return replace(train, **{name: share * v for name, v in given.items() if v is not None})
