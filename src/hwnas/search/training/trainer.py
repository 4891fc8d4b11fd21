"""The training loop: of a supernet, of a network alone, or to fine-tune one.

Everything random in a step (order of images, augmentation, architectures) is a function of the seed
and the step's number, so a training that was cut short goes on exactly as it would have.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from hwnas.errors import ConfigError, DivergedError
from hwnas.plugin import closest, resolve
from hwnas.search.data import Split
from hwnas.search.task import Task
from hwnas.search.training.augment import augment
from hwnas.search.training.checkpoint import Position, load_checkpoint, save_checkpoint
from hwnas.search.training.sampling import SAMPLING
from hwnas.search_spaces import Supernet

__all__ = ["NetworkStep", "SupernetStep", "TrainConfig", "TrainingRow", "fit"]


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: Passes over the training images; either this or ``budget_minutes``.
        budget_minutes: Training time, without start-up.
        sampling: ``"sandwich"``, ``"teacher"``, ``"uniform"`` or ``"package.module:function"``, a
            `Sampling`.
        random_subnets: Random networks in a sandwich step, beside the largest and the smallest;
            ``"teacher"`` has one more, in place of the smallest.
        distillation: Weight of the teacher against the labels for all networks of a step but the
            first, in [0, 1].
        batch_size: Images of a step, over all workers.
        learning_rate: At its peak.
        weight_decay: Of AdamW; normalisation and biases are spared.
        warmup: Share of the training in which the learning rate rises, in [0, 1).
        shift_pixels: Images are shifted by up to this much.
        flip: Whether images are mirrored left and right at random.
        cutout: Side of a square that is erased from each image, as a share of the image's, in
            [0, 1].
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1),
            in place of the task's own; the task's if None.
        workers: Processes that train together; 0 trains in this process, without Ray.
        checkpoint_seconds: Time between checkpoints.
    """

    epochs: float | None = None
    budget_minutes: float | None = None
    sampling: str = "sandwich"
    random_subnets: int = 1
    distillation: float = 0.5
    batch_size: int = 64
    learning_rate: float = 5e-3
    weight_decay: float = 0.02
    warmup: float = 0.05
    shift_pixels: int = 1
    flip: bool = False
    cutout: float = 0.0
    label_smoothing: float | None = None
    workers: int = 1
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.budget_minutes is None):
            raise ConfigError(
                "[train] needs one of epochs and budget_minutes, not "
                + ("both" if self.epochs is not None else "none")
            )
        for name in (
            "epochs",
            "budget_minutes",
            "learning_rate",
            "batch_size",
            "checkpoint_seconds",
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"train.{name} is {value}; expected a number above 0")
        for name in ("weight_decay", "shift_pixels", "workers", "random_subnets"):
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} is {getattr(self, name)}; expected at least 0")
        if not 0 <= self.distillation <= 1:
            raise ConfigError(f"train.distillation is {self.distillation}; expected 0 to 1")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"train.warmup is {self.warmup}; expected a share in [0, 1)")
        if not 0 <= self.cutout <= 1:
            raise ConfigError(f"train.cutout is {self.cutout}; expected a share in [0, 1]")
        if self.label_smoothing is not None and not 0 <= self.label_smoothing < 1:
            raise ConfigError(
                f"train.label_smoothing is {self.label_smoothing}; expected a share in [0, 1)"
            )
        if ":" not in self.sampling:
            resolve("train.sampling", self.sampling, SAMPLING)

    def adjusted(self, settings: Mapping[str, Any]) -> TrainConfig:
        """The same training with some other settings; ``epochs`` takes the place of a budget.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        unknown = set(settings) - {each.name for each in fields(self)}
        if unknown:
            known = [each.name for each in fields(self)]
            name = min(unknown)
            raise ConfigError(f"[train] has no key {name!r}; {closest(name, known)}")
        changed: dict[str, Any] = dict(settings)
        if "epochs" in settings:
            changed["budget_minutes"] = None
        return replace(self, **changed)


@dataclass(frozen=True)
class TrainingRow:
    """One point of the training curves.

    Attributes:
        step: Counted from 0.
        epoch: Passes over the training images so far.
        seconds: Training time so far.
        loss: Of the largest network (or the only one), on labels.
        loss_smallest: Of the smallest or last one of the step, on labels or on its teacher.
        learning_rate: Of the step.
        share: Of the whole training that is done, in [0, 1].
    """

    step: int
    epoch: float
    seconds: float
    loss: float
    loss_smallest: float
    learning_rate: float
    share: float


class Step(Protocol):
    """What one step does with its images: forward and backward passes that leave gradients."""

    def __call__(self, images: Tensor, targets: Tensor, rng: random.Random) -> tuple[float, float]:
        """Losses of the first and of the last network of the step.

        Args:
            images: (N, H, W, C) uint8.
            targets: As the task has them, first dimension N.
            rng: For what the step draws at random.
        """


@dataclass(frozen=True)
class SupernetStep:
    """Trains several networks of a supernet on the same images.

    The first learns from the labels, the others from its outputs too (in-place distillation, Yu and
    Huang, ICCV 2019). There the teacher is all that they learn from, which is ``distillation`` 1; a
    training of minutes has no good teacher for most of its time, so labels count by half here.
    """

    supernet: Supernet
    task: Task
    sampling: str = "sandwich"
    random_subnets: int = 1
    distillation: float = 0.5

    def __call__(self, images: Tensor, targets: Tensor, rng: random.Random) -> tuple[float, float]:
        """Forward and backward through each network of the step."""
        space = self.supernet.space
        sampling = resolve("train.sampling", self.sampling, SAMPLING)
        networks = sampling(space, rng, self.random_subnets)
        teacher: Tensor | None = None
        values = []
        for network in networks:
            self.supernet.activate(network)
            shape = space.input_shape(network)
            with _autocast(images):
                outputs = self.supernet(self.task.preprocessing.at(*shape[1:])(images)).float()
            loss = self.task.loss(outputs, targets)
            if teacher is None:
                teacher = outputs.detach()
            else:
                taught = self.task.distillation_loss(outputs, teacher)
                loss = self.distillation * taught + (1 - self.distillation) * loss
            loss.backward()  # type: ignore[no-untyped-call]
            values.append(loss.item())
        return values[0], values[-1]


@dataclass(frozen=True)
class NetworkStep:
    """Trains one network on labels."""

    network: nn.Module
    task: Task
    input_shape: tuple[int, int, int]

    def __call__(self, images: Tensor, targets: Tensor, rng: random.Random) -> tuple[float, float]:
        """Forward and backward."""
        with _autocast(images):
            inputs = self.task.preprocessing.at(*self.input_shape[1:])(images)
            outputs = self.network(inputs).float()
        loss = self.task.loss(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item(), loss.item()


def _autocast(images: Tensor) -> AbstractContextManager[None]:
    """Bfloat16 on CUDA; needs no scaling of the loss."""
    return torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda)


@dataclass
class _Clock:
    """Training time over sessions."""

    before: float
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started


def fit(
    network: nn.Module,
    step: Step,
    split: Split,
    config: TrainConfig,
    seed: int,
    *,
    checkpoint: Path | None = None,
    run: str = "",
    rank: int = 0,
    world: int = 1,
    on_row: Callable[[TrainingRow], None] = lambda row: None,
) -> Position:
    """Train until the budget is used up.

    Args:
        network: Whose parameters are trained; on its device.
        step: Leaves gradients of a batch in these parameters.
        split: The training images.
        config: How to train.
        seed: Of everything random.
        checkpoint: Where the state is kept; a training goes on from there if the file exists.
        run: Hash of what is trained, on what and how; a checkpoint of another is refused.
        rank: Which of the workers this is.
        world: How many workers train together, each on its part of every batch.
        on_row: Called after every step, on every worker.

    Returns:
        Where the training ended.

    Raises:
        DivergedError: A loss is not finite. The last checkpoint is kept.
        RunError: The checkpoint is of another training.
        ArtifactError: The checkpoint is damaged.
    """
    if len(split) < config.batch_size:
        raise ConfigError(
            f"train.batch_size is {config.batch_size}, but there are only {len(split)} training "
            "images; lower it"
        )
    if config.batch_size < 2 * world:
        raise ConfigError(
            f"train.batch_size is {config.batch_size}; expected at least 2 images for each of "
            f"{world} workers, because normalisation needs two"
        )
    optimizer = _optimizer(network, config)
    position = Position(0, 0.0, run)
    if checkpoint is not None and checkpoint.exists():
        position = load_checkpoint(checkpoint, network, optimizer, run)
    device = next(network.parameters()).device
    network.train()
    clock = _Clock(position.seconds)
    last_saved, index = clock.seconds, position.step
    steps_per_epoch = len(split) // config.batch_size
    while (share := _share(config, index, clock.seconds, steps_per_epoch, world)) < 1:
        rate = _learning_rate(config, share)
        for group in optimizer.param_groups:
            group["lr"] = rate
        images, targets = _batch(split, config, seed, index, rank, world)
        optimizer.zero_grad(set_to_none=True)
        rng = random.Random(f"{seed}-{index}")
        torch.manual_seed(rng.getrandbits(32) + rank)  # of dropout
        losses = step(images.to(device), targets.to(device), rng)
        if world > 1:
            losses = _average_gradients(network, losses)
        if not all(map(math.isfinite, losses)):
            raise DivergedError(index, rate)
        optimizer.step()
        seconds = clock.seconds
        on_row(TrainingRow(index, index / steps_per_epoch, seconds, *losses, rate, share))
        index += 1
        if (
            checkpoint is not None
            and rank == 0
            and seconds - last_saved > config.checkpoint_seconds
        ):
            save_checkpoint(checkpoint, network, optimizer, Position(index, clock.seconds, run))
            last_saved = seconds
    end = Position(index, clock.seconds, run)
    if checkpoint is not None and rank == 0 and end.step > position.step:
        save_checkpoint(checkpoint, network, optimizer, end)
    return end


def _optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, fused=True
    )


def _share(
    config: TrainConfig, step: int, seconds: float, steps_per_epoch: int, world: int
) -> float:
    """Share of the budget that is used up; the same on all workers."""
    if config.epochs is not None:
        return step / max(1, round(config.epochs * steps_per_epoch))
    assert config.budget_minutes is not None
    share = seconds / (60 * config.budget_minutes)
    if world > 1:
        shared = torch.tensor(share)
        torch.distributed.broadcast(shared, 0)
        share = float(shared)
    return share


def _learning_rate(config: TrainConfig, share: float) -> float:
    """Linear warm-up, then half a cosine to zero (Loshchilov and Hutter, ICLR 2017)."""
    if share < config.warmup:
        return config.learning_rate * (share / config.warmup * 0.9 + 0.1)
    done = (share - config.warmup) / (1 - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def _batch(
    split: Split, config: TrainConfig, seed: int, step: int, rank: int, world: int
) -> tuple[Tensor, Tensor]:
    """This worker's part of a batch, augmented."""
    steps_per_epoch = len(split) // config.batch_size
    epoch, within = divmod(step, steps_per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(len(split))
    rows = order[within * config.batch_size : (within + 1) * config.batch_size][rank::world]
    images, targets = split.take(rows)
    rng = np.random.default_rng([seed, step, rank, 1])
    images = augment(images, rng, config.shift_pixels, config.flip, config.cutout)
    return torch.from_numpy(images), torch.from_numpy(targets)


def _average_gradients(network: nn.Module, losses: tuple[float, float]) -> tuple[float, float]:
    """Average over the workers: gradients of all that took part in this step, and the losses.

    All workers draw the same architectures, so all have gradients for the same parameters: blocks
    that were skipped are skipped everywhere, and nobody waits for them. Because all see the same
    losses, all stop where one diverges.
    """
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    values = torch.tensor(losses, dtype=gradients[0].dtype, device=gradients[0].device)
    flat = torch.cat([values, *(gradient.reshape(-1) for gradient in gradients)])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    sizes = [2, *(gradient.numel() for gradient in gradients)]
    values, *parts = torch.split(flat, sizes)
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    first, last = values.tolist()
    return first, last
