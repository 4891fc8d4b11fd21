"""The training loop: of a supernet, of a network alone, or to fine-tune one.

Everything random in a step (order of images, augmentation, architectures) is a function of the seed
and the step's number, so a training that was cut short goes on exactly as it would have.
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
from hwnas.search.data import Split
from hwnas.search.training.averaging import MovingAverage
from hwnas.search.training.batch import Batch
from hwnas.search.training.checkpoint import (
    Position,
    load_checkpoint,
    read_position,
    save_checkpoint,
)
from hwnas.search.training.config import TrainConfig
from hwnas.search.training.memory import ran_out_of_memory
from hwnas.search.training.schedule import Schedule
from hwnas.search.training.steps import Moment, NetworkStep, Step, SupernetStep
from hwnas.search.training.workers import Workers

__all__ = ["NetworkStep", "SupernetStep", "TrainConfig", "TrainingRow", "fit"]


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
        note: What the user should know of this step; empty for nearly all.
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
    until: float = 1.0,
    on_row: Callable[[TrainingRow], None] = lambda row: None,
) -> Position:
    """Train until the budget is used up.

    If memory runs out in a step, that step and all that follow send each batch through in twice as
    many parts, which a row's note says; if that is not enough, the training stops. So it is where
    memory runs out on one of several workers, and where one fails otherwise, all stop.

    A checkpoint may be of other `CONTINUABLE` settings: weights and moments of the optimiser stay,
    and the training goes on where that much of the new budget is used up. A training that would be
    over by then starts anew, which its first row's note says.

    Args:
        network: Whose parameters are trained; on its device. Ends with the moving average of its
            weights where ``config.ema`` asks for that.
        step: Leaves gradients of a batch in these parameters.
        split: The training images.
        config: How to train.
        seed: Of everything random.
        checkpoint: Where the state is kept; a training goes on from there if the file exists.
        run: Hash of what is trained, on what and how; a checkpoint of another is refused.
        rank: Which of the workers this is.
        world: How many workers train together, each on its part of every batch.
        until: Share of the budget, in (0, 1], at which to stop; with a checkpoint, the training can
            go on from there.
        on_row: Called after every step, on every worker.

    Returns:
        Where the training ended.

    Raises:
        DivergedError: A loss is not finite. The last checkpoint with finite weights is kept.
        DeviceError: Memory ran out, also for half as many images at a time.
        RunError: The checkpoint is of another training.
        ArtifactError: The checkpoint is damaged.
    """
    _check_batch(split, config, world)
    workers = Workers(rank, world, next(network.parameters()).device)
    try:
        return _fit(
            *(network, step, Schedule(config, split, seed), workers),
            *(checkpoint, run, until, on_row),
        )
    except Exception as error:
        workers.agree(error)  # raises it, once all know
        raise


def _fit(
    network: nn.Module,
    step: Step,
    schedule: Schedule,
    workers: Workers,
    checkpoint: Path | None,
    run: str,
    until: float,
    on_row: Callable[[TrainingRow], None],
) -> Position:
    config = schedule.config
    optimizer = _optimizer(network, config)
    average = MovingAverage(network, config.ema) if config.ema else None
    position, told = Position(0, 0.0, run, settings=config.continuable), ""
    if checkpoint is not None and checkpoint.exists():
        schedule, position, told = _resumed(checkpoint, network, optimizer, average, schedule, run)
    device = next(network.parameters()).device
    autocast = _autocast(config, device)
    network.train()
    clock = _Clock(position.seconds)
    last_saved, begun, index, rate = clock.seconds, position.step, position.step, 0.0
    parts = position.parts or config.accumulate
    while (share := workers.agree(None, schedule.share(index, clock.seconds))) < until:
        rate, resolution = schedule.learning_rate(share), config.resolution(share)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = schedule.batch(index, workers.rank, workers.world, resolution).to(device)
        moment = Moment(
            random.Random(), index, share, schedule.seed, parts, autocast, workers, resolution
        )
        found = _within_memory(network, step, batch, moment, optimizer, config)
        losses, parts = _average_gradients(network, found, workers), found.parts
        if not all(map(math.isfinite, losses)):
            raise DivergedError(index, rate)
        with _memory_of(index):
            optimizer.step()
        if average is not None:
            average.update(index)
        seconds = clock.seconds
        note = "; ".join(each for each in (told, found.note) if each)
        on_row(TrainingRow(index, schedule.epoch(index), seconds, *losses, rate, share, note))
        told = ""
        index += 1
        due = workers.rank == 0 and seconds - last_saved > config.checkpoint_seconds
        if checkpoint is not None and due and _is_finite(network):
            position = replace(position, step=index, seconds=clock.seconds, parts=parts)
            save_checkpoint(checkpoint, network, optimizer, position, average)
            last_saved = seconds
    end = replace(position, step=index, seconds=clock.seconds, parts=parts)
    if not _is_finite(network):
        raise DivergedError(index - 1, rate)
    if checkpoint is not None and workers.rank == 0 and end.step > begun:
        save_checkpoint(checkpoint, network, optimizer, end, average)
    if average is not None:
        average.give()
    return end


def _resumed(
    checkpoint: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    schedule: Schedule,
    run: str,
) -> tuple[Schedule, Position, str]:
    """Go on from a checkpoint where these settings allow it.

    Returns:
        The schedule from there on, the position, and what the user should know.
    """
    found = read_position(checkpoint)
    if found is not None and found.run == run and schedule.continued(found) is None:
        told = (
            f"trained anew: the checkpoint is of {found.step} steps with other settings, beyond "
            "the end of the training that is asked for now"
        )
        return schedule, Position(0, 0.0, run, settings=schedule.config.continuable), told
    loaded = load_checkpoint(checkpoint, network, optimizer, run, average)
    continued = schedule.continued(loaded)
    assert continued is not None
    return *continued, ""


def _check_batch(split: Split, config: TrainConfig, world: int) -> None:
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


def _autocast(config: TrainConfig, device: torch.device) -> bool:
    """Whether forward passes compute in bfloat16."""
    if config.precision != "auto":
        return config.precision == "bf16"
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@dataclass(frozen=True)
class _Made:
    """What a step gave.

    Attributes:
        losses: Of this worker's images.
        parts: In how many parts they went through.
        note: What the user should know of it.
        flat: The losses and all gradients in one tensor, for the workers to average; None alone.
    """

    losses: tuple[float, float]
    parts: int
    note: str = ""
    flat: Tensor | None = None


def _within_memory(
    network: nn.Module,
    step: Step,
    batch: Batch,
    moment: Moment,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
) -> _Made:
    """Make a step, in twice as many parts if memory runs out for the first time.

    All workers do the same: where memory ran out on one of them, all begin the step again.

    Raises:
        DeviceError: It ran out again, or there is nothing to halve.
    """
    try:
        return _attempt(network, step, batch, moment, optimizer)
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Out of the handler, whose traceback held the tensors of the failed passes.
    at_once = math.ceil(len(batch.images) / moment.parts)
    fewest = config.batch_size // moment.workers.world  # the same for all, as images may not be
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
        f"{fewer} at a time, so train.accumulate = {moment.parts} is what this machine takes"
    )
    return replace(made, note=note)


def _attempt(
    network: nn.Module,
    step: Step,
    batch: Batch,
    moment: Moment,
    optimizer: torch.optim.Optimizer,
) -> _Made:
    """Make a step; where it fails on one worker, it fails on all."""
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


def _begun(moment: Moment, rank: int) -> Moment:
    """With its random numbers at their beginning, so that a second attempt draws the same."""
    rng = random.Random(f"{moment.seed}-{moment.step}")
    torch.manual_seed(rng.getrandbits(32) + rank)  # of dropout
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
    """Whether a training could go on from these weights."""
    return all(bool(parameter.isfinite().all()) for parameter in network.parameters())


def _optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, fused=True
    )


def _flat(network: nn.Module, losses: tuple[float, float]) -> Tensor:
    """The losses and all gradients one after the other."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    values = torch.tensor(losses, dtype=gradients[0].dtype, device=gradients[0].device)
    return torch.cat([values, *(gradient.reshape(-1) for gradient in gradients)])


def _average_gradients(network: nn.Module, made: _Made, workers: Workers) -> tuple[float, float]:
    """Average over the workers: gradients of all that took part in this step, and the losses.

    All workers draw the same architectures, so all have gradients for the same parameters: blocks
    that were skipped are skipped everywhere, and nobody waits for them. Because all see the same
    losses, all stop where one diverges.
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
