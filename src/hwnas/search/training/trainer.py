"""Training loop for supernets, for single networks and for fine-tuning.

All random numbers of a step (order of images, augmentation, architectures) are a function of the
seed and the step's index, so an interrupted training resumes exactly.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError, DeviceError, DivergedError
from hwnas.search.data.image_data import Split
from hwnas.search.engine.remote_files import fetched
from hwnas.search.training.averaging import MovingAverage
from hwnas.search.training.batch import Batch
from hwnas.search.training.checkpoint import (
    Position,
    load_checkpoint,
    read_position,
    save_checkpoint,
)
from hwnas.search.training.config import TrainConfig
from hwnas.search.training.early_stopping import EarlyStopping
from hwnas.search.training.memory import ran_out_of_memory
from hwnas.search.training.optimizers import frozen, make_optimizer
from hwnas.search.training.schedule import Schedule
from hwnas.search.training.steps import NetworkStep, StepContext, SupernetStep, TrainingStep
from hwnas.search.training.workers import Workers

__all__ = ["NetworkStep", "SupernetStep", "TrainConfig", "TrainingPoint", "fit"]


@dataclass(frozen=True)
class TrainingPoint:
    """Point of the training curves.

    Attributes:
        step: Index of the step, from 0.
        epoch: Passes over the training images so far.
        seconds: Training time so far, in seconds.
        loss: Training loss of the first network of the step, which is the largest under most
            sampling rules.
        loss_smallest: Training loss of the last network of the step, which is the smallest under
            the sandwich rule; with distillation if the network has a teacher.
        learning_rate: Learning rate of the step.
        share: Share of the training that is done, in [0, 1].
        note: Message to the user about this step; usually empty.
    """

    step: int
    epoch: float
    seconds: float
    loss: float
    loss_smallest: float
    learning_rate: float
    share: float
    note: str = ""


@dataclass
class _Clock:
    """Clock of the training time, summed over sessions."""

    before: float
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started


def fit(
    network: nn.Module,
    step: TrainingStep,
    split: Split,
    config: TrainConfig,
    seed: int,
    *,
    checkpoint: Path | None = None,
    run: str = "",
    rank: int = 0,
    world: int = 1,
    until: float = 1.0,
    validate: Callable[[nn.Module], float] | None = None,
    on_row: Callable[[TrainingPoint], None] = lambda row: None,
) -> Position:
    """Train until the budget is used up, or until no epoch of ``config.patience`` was the best.

    If memory runs out in a step, that step and all later ones split each batch into twice as many
    parts, and a row's note says so. If memory runs out again, the training stops. With several
    workers, all split their batches if memory runs out on one of them, and all stop if one fails.

    A checkpoint may have other `CONTINUABLE` settings. Weights and optimiser state are kept, and
    the progress is the share of the new budget that is used up. A training that would already be
    over starts again from the beginning, and the note of its first row says so.

    Args:
        network: Network to train, on its device. If ``config.ema`` is not 0, it ends with the
            moving average of its weights; with ``validate``, it ends with the best weights.
        step: Step that leaves the gradients of a batch in the network's parameters.
        split: Training images.
        config: Training settings.
        seed: Seed of the random numbers.
        checkpoint: Checkpoint file; if it exists, the training resumes from it.
        run: Hash of the network, the data and the settings; a checkpoint of another hash is
            refused.
        rank: Rank of this worker.
        world: Number of workers that train together, each on its part of every batch.
        until: Share of the budget, in (0, 1], at which to stop; with a checkpoint, the training can
            be resumed from there.
        validate: Function that scores the network after each epoch, higher is better, for
            ``config.patience``; None if the training does not end early.
        on_row: Function that is called after every step, on every worker.

    Returns:
        Position at the end of the training.

    Raises:
        DivergedError: A loss is not finite. The last checkpoint with finite weights is kept.
        DeviceError: Memory ran out, even with half as many images at a time.
        RunError: The checkpoint belongs to another training.
        ArtifactError: The checkpoint is damaged.
    """
    _check_batch(split, config, world)
    workers = Workers(rank, world, next(network.parameters()).device)
    try:
        with frozen(network, config):
            return _fit(
                *(network, step, Schedule(config, split, seed), workers),
                *(checkpoint, run, until),
                *(validate, on_row),
            )
    except Exception as error:
        workers.agree(error)  # raises the error once all workers know of it
        raise


def _fit(
    network: nn.Module,
    step: TrainingStep,
    schedule: Schedule,
    workers: Workers,
    checkpoint: Path | None,
    run: str,
    until: float,
    validate: Callable[[nn.Module], float] | None,
    on_row: Callable[[TrainingPoint], None],
) -> Position:
    config = schedule.config
    optimizer = make_optimizer(network, config)
    average = MovingAverage(network, config.ema) if config.ema else None
    stopping = None
    if config.patience is not None and validate is not None and workers.rank == 0:
        stopping = EarlyStopping(network, validate, config.patience)
    position, notice = Position(0, 0.0, run, settings=config.continuable), ""
    if checkpoint is not None and fetched(checkpoint):
        schedule, position, notice = _resumed(
            checkpoint, network, optimizer, average, stopping, schedule, run
        )
    device = next(network.parameters()).device
    autocast = _autocast(config, device)
    network.train()
    clock = _Clock(position.seconds)
    last_saved, begun, index, rate = clock.seconds, position.step, position.step, 0.0
    parts = position.parts or config.accumulate

    def used() -> float:
        over = stopping is not None and stopping.over(schedule.epoch(index))
        return 1.0 if over else schedule.share(index, clock.seconds)

    while (share := workers.agree(None, used())) < until:
        rate, resolution = schedule.learning_rate(share), config.resolution(share)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        batch = schedule.batch(index, workers.rank, workers.world, resolution).to(device)
        moment = StepContext(
            random.Random(), index, share, schedule.seed, parts, autocast, workers, resolution
        )
        found = _within_memory(network, step, batch, moment, optimizer, config)
        losses, parts = _average_gradients(network, found, workers), found.parts
        if not all(map(math.isfinite, losses)):
            raise DivergedError(index, rate)
        with _memory_of(index):
            if config.clip_norm is not None:
                nn.utils.clip_grad_norm_(network.parameters(), config.clip_norm)
            optimizer.step()
        if average is not None:
            average.update(index)
        if stopping is not None and schedule.ends_epoch(index):
            stopping.look(schedule.epoch(index + 1), average)
        seconds = clock.seconds
        note = "; ".join(each for each in (notice, found.note) if each)
        on_row(TrainingPoint(index, schedule.epoch(index), seconds, *losses, rate, share, note))
        notice = ""
        index += 1
        due = workers.rank == 0 and seconds - last_saved > config.checkpoint_seconds
        if checkpoint is not None and due and _is_finite(network):
            position = replace(position, step=index, seconds=clock.seconds, parts=parts)
            save_checkpoint(checkpoint, network, optimizer, position, average, stopping)
            last_saved = seconds
    end = replace(position, step=index, seconds=clock.seconds, parts=parts)
    if not _is_finite(network):
        raise DivergedError(index - 1, rate)
    if end.step > begun:
        if stopping is not None and until == 1 and not schedule.ends_epoch(index - 1):
            stopping.look(schedule.epoch(index), average)
        if checkpoint is not None and workers.rank == 0:
            save_checkpoint(checkpoint, network, optimizer, end, average, stopping)
    if average is not None:
        average.give()
    if stopping is not None:
        stopping.give()
    return end


def _resumed(
    checkpoint: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    stopping: EarlyStopping | None,
    schedule: Schedule,
    run: str,
) -> tuple[Schedule, Position, str]:
    """Resume from a checkpoint if the settings allow it.

    Returns:
        The resumed schedule, the position, and a message to the user, which is usually empty.
    """
    found = read_position(checkpoint)
    if found is not None and found.run == run and schedule.continued(found) is None:
        notice = (
            f"trained again from the start: the checkpoint has {found.step} steps, more than the "
            "current settings ask for"
        )
        return schedule, Position(0, 0.0, run, settings=schedule.config.continuable), notice
    loaded = load_checkpoint(checkpoint, network, optimizer, run, average, stopping)
    continued = schedule.continued(loaded)
    assert continued is not None
    return *continued, ""


def _check_batch(split: Split, config: TrainConfig, world: int) -> None:
    if len(split) < config.batch_size:
        raise ConfigError(
            f"train.batch_size is {config.batch_size}, but there are only {len(split)} training "
            "images; lower train.batch_size"
        )
    if config.batch_size < 2 * world:
        raise ConfigError(
            f"train.batch_size is {config.batch_size}; expected at least 2 images for each of "
            f"{world} workers, because normalisation needs two"
        )


def _autocast(config: TrainConfig, device: torch.device) -> bool:
    """Return whether forward passes compute in bfloat16."""
    if config.precision != "auto":
        return config.precision == "bf16"
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@dataclass(frozen=True)
class _Made:
    """Result of a step.

    Attributes:
        losses: Losses on this worker's images.
        parts: Number of parts that the images were split into.
        note: Message to the user, usually empty.
        flat: Losses and all gradients in one tensor, for the workers to average; None with a single
            worker.
    """

    losses: tuple[float, float]
    parts: int
    note: str = ""
    flat: Tensor | None = None


def _within_memory(
    network: nn.Module,
    step: TrainingStep,
    batch: Batch,
    moment: StepContext,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
) -> _Made:
    """Make a step; if memory runs out for the first time, repeat it in twice as many parts.

    If memory runs out on one worker, all workers repeat the step.

    Raises:
        DeviceError: Memory ran out again, or a part has too few images to halve.
    """
    try:
        return _attempt(network, step, batch, moment, optimizer)
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Outside of the exception handler, whose traceback keeps the tensors of failed passes alive.
    at_once = math.ceil(len(batch.images) / moment.parts)
    fewest = config.batch_size // moment.workers.world  # equal on all workers, unlike len(images)
    if moment.parts > config.accumulate or fewest < 4 * moment.parts:
        raise _no_memory(moment.step, f"with {at_once} images at a time", reason)
    if batch.images.is_cuda:
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    fewer = math.ceil(at_once / 2)
    moment = replace(moment, parts=2 * moment.parts)
    with _memory_of(moment.step, f"with {at_once} images at a time, and then with {fewer}"):
        made = _attempt(network, step, batch, moment, optimizer)
    note = (
        f"out of memory at step {moment.step} with {at_once} images at a time; from here on "
        f"{fewer} at a time, which is train.accumulate = {moment.parts}"
    )
    return replace(made, note=note)


def _attempt(
    network: nn.Module,
    step: TrainingStep,
    batch: Batch,
    moment: StepContext,
    optimizer: torch.optim.Optimizer,
) -> _Made:
    """Make a step; if it fails on one worker, it fails on all of them."""
    workers = moment.workers
    optimizer.zero_grad(set_to_none=True)
    try:
        losses = step(batch, _begun(moment, workers.rank))
        flat = _flat(network, losses) if workers.world > 1 else None
    except Exception as error:
        workers.agree(error)
        raise
    workers.agree()
    return _Made(losses, moment.parts, flat=flat)


def _begun(moment: StepContext, rank: int) -> StepContext:
    """Return the context with its generator reset, so that a second attempt draws the same numbers.

    PyTorch's generator is reset as well.
    """
    rng = random.Random(f"{moment.seed}-{moment.step}")
    torch.manual_seed(rng.getrandbits(32) + rank)  # for dropout
    return replace(moment, rng=rng)


@contextmanager
def _memory_of(step: int, tried: str = "when weights were updated") -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        raise _no_memory(step, tried, str(error).splitlines()[0]) from error


def _no_memory(step: int, tried: str, reason: str) -> DeviceError:
    return DeviceError(
        f"out of memory at step {step} of the training, {tried} ({reason}); lower "
        "train.batch_size, raise train.accumulate, or search a smaller space"
    )


def _is_finite(network: nn.Module) -> bool:
    """Return whether all weights are finite, so that a training can resume from them."""
    return all(bool(parameter.isfinite().all()) for parameter in network.parameters())


def _flat(network: nn.Module, losses: tuple[float, float]) -> Tensor:
    """Concatenate the losses and all gradients."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    values = torch.tensor(losses, dtype=gradients[0].dtype, device=gradients[0].device)
    return torch.cat([values, *(gradient.reshape(-1) for gradient in gradients)])


def _average_gradients(network: nn.Module, made: _Made, workers: Workers) -> tuple[float, float]:
    """Average the gradients of this step and the losses over the workers.

    All workers draw the same architectures, so all have gradients for the same parameters, and
    parameters of skipped blocks are not exchanged. All workers see the same losses, so all of them
    stop if one diverges.
    """
    if made.flat is None:
        return made.losses
    workers.average(made.flat)
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    values, *parts = torch.split(made.flat, [2, *(gradient.numel() for gradient in gradients)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    first, last = values.tolist()
    return first, last
