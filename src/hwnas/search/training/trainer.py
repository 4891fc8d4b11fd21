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

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from hwnas.errors import ConfigError, DeviceError, DivergedError
from hwnas.search.data import Split
from hwnas.search.training.augment import augment
from hwnas.search.training.averaging import MovingAverage
from hwnas.search.training.checkpoint import Position, load_checkpoint, save_checkpoint
from hwnas.search.training.config import TrainConfig
from hwnas.search.training.memory import ran_out_of_memory
from hwnas.search.training.steps import Moment, NetworkStep, Step, SupernetStep

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
    on_row: Callable[[TrainingRow], None] = lambda row: None,
) -> Position:
    """Train until the budget is used up.

    If memory runs out in a step, that step and all that follow send each batch through in twice as
    many parts, which a row's note says; if that is not enough, the training stops.

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
    optimizer = _optimizer(network, config)
    average = MovingAverage(network, config.ema) if config.ema else None
    position = Position(0, 0.0, run)
    if checkpoint is not None and checkpoint.exists():
        position = load_checkpoint(checkpoint, network, optimizer, run, average)
    device = next(network.parameters()).device
    autocast = _autocast(config, device)
    network.train()
    clock = _Clock(position.seconds)
    last_saved, index, rate = clock.seconds, position.step, 0.0
    parts = position.parts or config.accumulate
    steps_per_epoch = len(split) // config.batch_size
    while (share := _share(config, index, clock.seconds, steps_per_epoch, world)) < 1:
        rate = _learning_rate(config, share)
        for group in optimizer.param_groups:
            group["lr"] = rate
        images, targets, rows = (
            each.to(device) for each in _batch(split, config, seed, index, rank, world)
        )
        moment = Moment(random.Random(), index, share, seed, parts, autocast, rows)
        losses, parts, note = _within_memory(
            step, images, targets, moment, rank, optimizer, config.accumulate
        )
        if world > 1:
            losses = _average_gradients(network, losses)
        if not all(map(math.isfinite, losses)):
            raise DivergedError(index, rate)
        with _memory_of(index):
            optimizer.step()
        if average is not None:
            average.update(index)
        seconds = clock.seconds
        on_row(TrainingRow(index, index / steps_per_epoch, seconds, *losses, rate, share, note))
        index += 1
        due = rank == 0 and seconds - last_saved > config.checkpoint_seconds
        if checkpoint is not None and due and _is_finite(network):
            position = Position(index, clock.seconds, run, parts)
            save_checkpoint(checkpoint, network, optimizer, position, average)
            last_saved = seconds
    end = Position(index, clock.seconds, run, parts)
    if not _is_finite(network):
        raise DivergedError(index - 1, rate)
    if checkpoint is not None and rank == 0 and end.step > position.step:
        save_checkpoint(checkpoint, network, optimizer, end, average)
    if average is not None:
        average.give()
    return end


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


def _within_memory(
    step: Step,
    images: Tensor,
    targets: Tensor,
    moment: Moment,
    rank: int,
    optimizer: torch.optim.Optimizer,
    accumulate: int,
) -> tuple[tuple[float, float], int, str]:
    """Make a step, in twice as many parts if memory runs out for the first time.

    Returns:
        Its losses, the number of parts from now on, and what there is to say.

    Raises:
        DeviceError: It ran out again, or there is nothing to halve.
    """
    optimizer.zero_grad(set_to_none=True)
    try:
        return step(images, targets, _begun(moment, rank)), moment.parts, ""
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Out of the handler, whose traceback held the tensors of the failed passes.
    at_once = math.ceil(len(images) / moment.parts)
    if moment.parts > accumulate or len(images) < 4 * moment.parts:
        raise _no_memory(moment.step, f"with {at_once} images at a time", reason)
    optimizer.zero_grad(set_to_none=True)
    if images.is_cuda:
        torch.cuda.empty_cache()
    fewer = math.ceil(at_once / 2)
    moment = replace(moment, parts=2 * moment.parts)
    with _memory_of(moment.step, f"with {at_once} images at a time, and then with {fewer}"):
        losses = step(images, targets, _begun(moment, rank))
    note = (
        f"out of memory at step {moment.step} with {at_once} images at a time; from here on "
        f"{fewer} at a time, so train.accumulate = {moment.parts} is what this machine takes"
    )
    return losses, moment.parts, note


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
) -> tuple[Tensor, Tensor, Tensor]:
    """This worker's part of a batch, augmented; its targets, and its rows of the split."""
    steps_per_epoch = len(split) // config.batch_size
    epoch, within = divmod(step, steps_per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(len(split))
    rows = order[within * config.batch_size : (within + 1) * config.batch_size][rank::world]
    images, targets = split.take(rows)
    rng = np.random.default_rng([seed, step, rank, 1])
    images, targets = augment(images, targets, rng, config.shift_pixels, config.flip, config.cutout)
    return torch.from_numpy(images), torch.from_numpy(targets), torch.from_numpy(rows)


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
