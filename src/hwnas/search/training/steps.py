"""Training steps: forward and backward passes of a supernet's networks, or of one network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.search.data.split import Split
from hwnas.search.tasks.task import Task, smoothed
from hwnas.search.training.batch import Batch
from hwnas.search.training.config import TrainConfig
from hwnas.search.training.distillation import distillation_loss
from hwnas.search.training.features import feature_loss, recorded_features
from hwnas.search.training.sampling import Sampling, sampling_rule
from hwnas.search.training.workers import Workers
from hwnas.search_spaces import Architecture, Supernet
from hwnas.search_spaces.layers.quantisers import quantisation_noise
from hwnas.search_spaces.quantised.distribution import weight_distribution_loss

__all__ = ["NetworkStep", "StepContext", "SupernetStep", "Teacher", "TrainingStep"]

_ASKED_AT_ONCE = 256


@dataclass(frozen=True)
class StepContext:
    """Context of a step within its training.

    Attributes:
        rng: Source of randomness of the step; a function of seed and step.
        step: Index of the step, from 0.
        share: Share of the training that is done, in [0, 1).
        seed: Seed of the training.
        parts: Number of parts that the images are split into; they are processed one after the
            other.
        autocast: True if forward passes compute in bfloat16, whose range needs no loss scaling.
        workers: Workers that make the step together, each with its own images.
        resolution: Side of the images, as a share of the input side of a network, in (0, 1].
    """

    rng: random.Random
    step: int = 0
    share: float = 0.0
    seed: int = 0
    parts: int = 1
    autocast: bool = False
    workers: Workers = field(default_factory=Workers)
    resolution: float = 1.0

    def inputs(self, task: Task, images: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """Preprocess images for a network of an input shape, at the resolution of this step."""
        height, width = (max(1, round(side * self.resolution)) for side in shape[1:])
        return task.preprocessing.at(height, width)(images)

    def forward_passes(self, images: Tensor) -> AbstractContextManager[None]:
        """Return the context of forward passes: autocast to bfloat16 if enabled."""
        return torch.autocast(images.device.type, torch.bfloat16, enabled=self.autocast)


@dataclass(frozen=True)
class Teacher:
    """Trained network that other networks learn from by distillation.

    Attributes:
        network: Network from (N, *input_shape) to outputs of the task, in evaluation mode and
            without gradients.
        input_shape: Channels, height and width of its inputs.
        said: Stored outputs for each image of the split without augmentation, (images, ...)
            float16; None if outputs are computed in every step.
    """

    network: nn.Module
    input_shape: tuple[int, int, int]
    said: Tensor | None = None

    def to(self, device: torch.device | str) -> Teacher:
        """Move the network, in place, to a device; return this teacher."""
        self.network.to(device)
        return self

    def says(self, task: Task, part: Batch, moment: StepContext) -> Tensor:
        """Return the teacher's outputs for a part of a batch, float32."""
        if self.said is not None:
            assert part.rows is not None
            return self.said[part.rows.cpu()].to(part.images.device).float()
        with torch.no_grad(), moment.forward_passes(part.images):
            return self._outputs(task, part.images)

    def prepared(
        self, sees: str, task: Task, split: Split, workers: Workers | None = None
    ) -> Teacher:
        """Return this teacher, or one with stored outputs for each image of a split.

        Args:
            sees: ``"augmented"`` for this teacher, ``"plain"`` for stored outputs.
            task: Task of the teacher.
            split: Training images.
            workers: Workers that compute the outputs together, each for its part of the images;
                this process alone if None.
        """
        if sees == "augmented":
            return self
        workers = workers or Workers()
        rank, world = workers.rank, workers.world
        device = next(self.network.parameters()).device
        found = []
        for rows in np.array_split(np.arange(len(split)), math.ceil(len(split) / _ASKED_AT_ONCE)):
            images, _ = split.take(rows[rank::world])
            with torch.no_grad():
                outputs = self._outputs(task, torch.from_numpy(images).to(device))
            said = torch.zeros(len(rows), *outputs.shape[1:])
            said[rank::world] = outputs.cpu()
            found.append(said)
        said = torch.cat(found)
        if world > 1:
            said = said.to(device)
            workers.agree()
            workers.add_up(said)
        return replace(self, said=said.half().cpu())

    def _outputs(self, task: Task, images: Tensor) -> Tensor:
        outputs: Tensor = self.network(task.preprocessing.at(*self.input_shape[1:])(images))
        return outputs.float()


class TrainingStep(Protocol):
    """Forward and backward passes of one training step, which leave gradients."""

    def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
        """Compute gradients; return the mean losses of the step's first and last network.

        Args:
            batch: Batch of this step.
            moment: Context of the step.
        """


@dataclass(frozen=True)
class SupernetStep:
    """Step that trains some networks of a supernet on one batch, and adds up their gradients.

    All networks learn from labels and from a teacher: ``teacher`` if it is given, otherwise the
    first network of the step, provided that it is the largest of the space (in-place distillation,
    Yu and Huang, ICCV 2019).

    Attributes:
        supernet: Supernet to train.
        task: Task that gives preprocessing and losses.
        sampling: Sampling rule, which draws the networks of a step.
        random_subnets: Number of random networks, as the rule counts them.
        distillation: Weight of the distillation loss against the loss on labels, in [0, 1].
        distillation_loss: Name of the distillation loss, ``"kl"`` or ``"alpha"``.
        teacher: Trained teacher of all networks; None for in-place distillation.
        chained: Whether each network of a step teaches the next one, instead of the first teaching
            all others.
        weight_distribution: Weight of `weight_distribution_loss`; 0 for none.
        noise: Whether networks are trained with noise in place of rounding.
    """

    supernet: Supernet
    task: Task
    sampling: str = "sandwich"
    random_subnets: int = 1
    distillation: float = 0.5
    distillation_loss: str = "kl"
    teacher: Teacher | None = None
    chained: bool = False
    weight_distribution: float = 0.0
    noise: bool = False

    def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
        """Compute gradients of every network; return the first and last network's losses.

        If any loss is not finite, it is returned in place of the last network's loss.
        """
        parts = list(batch.parts(moment.parts))
        networks = self._rule(
            self.supernet.space,
            moment.rng,
            self.random_subnets,
            step=moment.step,
            share=moment.share,
            seed=moment.seed,
            losses=partial(self._losses, parts[0], moment),
        )
        total = torch.zeros(len(networks), device=batch.images.device)
        for part in parts:
            total += part.weight * self._train(part, moment, networks)
        values: list[float] = total.tolist()  # waits for the device only here
        broken = next((value for value in values if not math.isfinite(value)), values[-1])
        return values[0], broken

    @cached_property
    def _rule(self) -> Sampling:
        return sampling_rule(self.sampling)

    @cached_property
    def _largest(self) -> Architecture:
        return self.supernet.space.largest()

    @cached_property
    def _distance(self) -> Callable[[Tensor, Tensor], Tensor]:
        return distillation_loss(self.task, self.distillation_loss)

    def _train(self, part: Batch, moment: StepContext, networks: Sequence[Architecture]) -> Tensor:
        teacher = None
        if self.teacher is not None:
            teacher = self.teacher.says(self.task, part, moment)
        losses = []
        for place, network in enumerate(networks):
            outputs = self._outputs(part, moment, network)
            loss = part.loss(self.task, outputs)
            if teacher is not None:
                taught = self._distance(outputs, teacher)
                loss = self.distillation * taught + (1 - self.distillation) * loss
            first = place == 0 and network == self._largest and self.teacher is None
            if first or (self.chained and teacher is not None):
                teacher = outputs.detach()
            losses.append(loss.detach())
            if place == 0 and self.weight_distribution:
                penalty = weight_distribution_loss(self.supernet.shared)
                loss = loss + self.weight_distribution * penalty
            (part.weight * loss).backward()  # type: ignore[no-untyped-call]
        return torch.stack(losses)

    def _outputs(self, part: Batch, moment: StepContext, network: Architecture) -> Tensor:
        self.supernet.activate(network)
        shape = self.supernet.space.input_shape(network)
        with moment.forward_passes(part.images), quantisation_noise(self.noise):
            inputs = moment.inputs(self.task, part.images, shape)
            outputs: Tensor = self.supernet(inputs)
        return outputs.float()

    def _losses(
        self, part: Batch, moment: StepContext, networks: Sequence[Architecture]
    ) -> list[float]:
        """Return losses on labels, averaged over the workers so that all draw the same networks."""
        with torch.no_grad():
            outputs = (self._outputs(part, moment, network) for network in networks)
            losses = torch.stack([part.loss(self.task, each) for each in outputs])
        moment.workers.agree()
        moment.workers.average(losses)
        found: list[float] = losses.tolist()
        return found


@dataclass(frozen=True)
class NetworkStep:
    """Step that trains one network on labels, and by distillation if a teacher is given.

    Attributes:
        network: Network to train.
        task: Task that gives preprocessing and losses.
        input_shape: Channels, height and width of the network's inputs.
        teacher: Trained teacher; None to learn from labels alone.
        distillation: Weight of the distillation loss against the loss on labels, in [0, 1].
        distillation_loss: Name of the distillation loss, ``"kl"`` or ``"alpha"``.
        weight_distribution: Weight of `weight_distribution_loss`; 0 for none.
        features: Weight of the distillation of features against that of outputs, 0 or more. The
            teacher then has layers of the same names, and no stored outputs.
    """

    network: nn.Module
    task: Task
    input_shape: tuple[int, int, int]
    teacher: Teacher | None = None
    distillation: float = 0.5
    distillation_loss: str = "kl"
    weight_distribution: float = 0.0
    features: float = 0.0

    def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
        """Compute gradients; return the loss twice."""
        total = torch.zeros((), device=batch.images.device)
        for part in batch.parts(moment.parts):
            with self._recorded(self.network) as features:
                with moment.forward_passes(part.images):
                    inputs = moment.inputs(self.task, part.images, self.input_shape)
                    outputs = self.network(inputs)
                loss = part.weight * self._loss(outputs.float(), features, part, moment)
            total += loss.detach()
            if self.weight_distribution:
                penalty = weight_distribution_loss(self.network)
                loss = loss + part.weight * self.weight_distribution * penalty
            loss.backward()  # type: ignore[no-untyped-call]
        return total.item(), total.item()

    @classmethod
    def of(
        cls,
        network: nn.Module,
        task: Task,
        input_shape: tuple[int, int, int],
        config: TrainConfig,
        teacher: Teacher | None = None,
        features: float = 0.0,
    ) -> NetworkStep:
        """Return a step with the label smoothing and distillation of training settings.

        Raises:
            ConfigError: Label smoothing is set, and the task has no labels.
        """
        task = smoothed(task, config.label_smoothing)
        how = config.distillation, config.distillation_loss, config.weight_distribution
        return cls(network, task, input_shape, teacher, *how, features)

    @cached_property
    def _distance(self) -> Callable[[Tensor, Tensor], Tensor]:
        return distillation_loss(self.task, self.distillation_loss)

    def _recorded(self, network: nn.Module) -> AbstractContextManager[dict[str, Tensor]]:
        return recorded_features(network) if self.features else nullcontext({})

    def _loss(
        self, outputs: Tensor, features: Mapping[str, Tensor], part: Batch, moment: StepContext
    ) -> Tensor:
        loss = part.loss(self.task, outputs)
        if self.teacher is None:
            return loss
        with self._recorded(self.teacher.network) as wanted:
            taught = self._distance(outputs, self.teacher.says(self.task, part, moment))
        if self.features:
            taught = taught + self.features * feature_loss(features, wanted)
        return self.distillation * taught + (1 - self.distillation) * loss
