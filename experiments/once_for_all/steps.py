"""Training steps of both supernets on the same images, networks, losses and optimiser."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.once_for_all.rival import CLASSES, SIDE, settings_of
from hwnas.deploy.io import Preprocessing
from hwnas.search import training
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import StepContext, SupernetStep
from hwnas.search.training.sampling import SAMPLING
from hwnas.search_spaces import Architecture, MobileNetSpace, Supernet

__all__ = ["SIDES", "Batch", "Timed", "make_all_blocks", "optimiser", "stepper"]

SIDES = ("hwnas", "hwnas-contiguous", "ofa", "ofa-channels-last")
"""Sides of the comparison: our supernet as the trainer runs it and in contiguous memory format, and
theirs as published and in our channels-last memory format."""
_DISTILLATION = 0.5
_RANDOM_SUBNETS = 2
_ALL_BLOCKS = 500  # networks that together contain every block

Step = Callable[[str, str], None]
"""Function that makes one step of a sampling rule, with the networks that a key determines."""
_PREPROCESSING = Preprocessing(SIDE, SIDE, 3, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@dataclass(frozen=True)
class Batch:
    """Fixed batch of random images; the speed does not depend on their content.

    Attributes:
        images: Images, uint8 (N, 64, 64, 3).
        targets: Class labels, int64 (N,).
    """

    images: Tensor
    targets: Tensor

    @classmethod
    def drawn(cls, size: int, seed: int) -> Batch:
        """Return a batch of ``size`` images."""
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (size, SIDE, SIDE, 3), dtype=np.uint8)
        return cls(torch.from_numpy(images), torch.from_numpy(rng.integers(0, CLASSES, size)))

    @property
    def task(self) -> Classification:
        """Classification task with the loss that both sides minimise."""
        return Classification(tuple(map(str, range(CLASSES))), _PREPROCESSING)

    def inputs(self, channels_last: bool) -> Tensor:
        """Return the inputs of a network, float32 (N, 3, 64, 64)."""
        inputs = _PREPROCESSING(self.images)
        return inputs if channels_last else inputs.contiguous()


def optimiser(network: nn.Module) -> torch.optim.Optimizer:
    """Return the trainer's optimiser, which both sides use."""
    return torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.02, fused=True)


def make_all_blocks(supernet: Supernet) -> None:
    """Activate random networks until every block was active once.

    A training reaches this state within a minute.
    """
    rng = random.Random(0)
    for _ in range(_ALL_BLOCKS):
        supernet.activate(supernet.space.sample(rng))


def stepper(side: str, space: MobileNetSpace, theirs: Any, batch: Batch) -> Step:
    """Return the training step of one side's supernet.

    Args:
        side: One of `SIDES`.
        space: Space of the trained networks.
        theirs: Supernet of once-for-all, which is trained if ``side`` is theirs.
        batch: Batch to train on.
    """
    channels_last = side in ("hwnas", "ofa-channels-last")
    ours = side.startswith("hwnas")
    supernet: Any = space.supernet() if ours else theirs
    if channels_last:
        supernet.to(memory_format=torch.channels_last)
    if ours:
        make_all_blocks(supernet)
    supernet.train()
    optimizer = optimiser(supernet)
    if side == "hwnas":
        return _as_trained(supernet, optimizer, batch)

    def activate(network: Architecture) -> None:
        if ours:
            supernet.activate(network)
        else:
            supernet.set_active_subnet(**settings_of(space, network))

    inputs, task = batch.inputs(channels_last), batch.task

    def step(rule: str, key: str) -> None:
        optimizer.zero_grad(set_to_none=True)
        networks = SAMPLING[rule](space, random.Random(key), _RANDOM_SUBNETS)
        teacher: Tensor | None = None
        for network in networks:
            activate(network)
            outputs = supernet(inputs)
            loss = task.loss(outputs, batch.targets)
            if teacher is not None:
                taught = task.distillation_loss(outputs, teacher)
                loss = _DISTILLATION * taught + (1 - _DISTILLATION) * loss
            elif len(networks) > 1:
                teacher = outputs.detach()
            loss.backward()
        optimizer.step()

    return step


def _as_trained(supernet: Supernet, optimizer: torch.optim.Optimizer, batch: Batch) -> Step:
    """Return the trainer's own step, which also converts pixels into inputs for each network."""
    rules = {
        rule: SupernetStep(supernet, batch.task, rule, _RANDOM_SUBNETS, _DISTILLATION)
        for rule in ("uniform", "sandwich")
    }

    def step(rule: str, key: str) -> None:
        optimizer.zero_grad(set_to_none=True)
        rules[rule](training.Batch(batch.images, batch.targets), StepContext(random.Random(key)))
        optimizer.step()

    return step


@dataclass(frozen=True)
class Timed:
    """Seconds of a timing round on two clocks.

    Attributes:
        wall: Wall-clock time.
        cpu: CPU time of all threads.
    """

    wall: float
    cpu: float

    @classmethod
    def of(cls, step: Step, rule: str, keys: Sequence[str]) -> Timed:
        """Run some steps one after the other and return their time."""
        wall, cpu = time.perf_counter(), time.process_time()
        for key in keys:
            step(rule, key)
        return cls(time.perf_counter() - wall, time.process_time() - cpu)
