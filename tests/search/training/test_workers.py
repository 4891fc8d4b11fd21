"""Distributed training of two processes over gloo, one of which fails: both end alike."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

from hwnas.errors import ConfigError, DataError, DeviceError, WorkerError
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.split import Split
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import (
    Batch,
    NetworkStep,
    StepContext,
    SupernetStep,
    TrainConfig,
    fit,
)
from hwnas.search_spaces import Architecture, MobileNetSpace, SearchSpace

CONFIG = TrainConfig(epochs=2, batch_size=30, workers=2)
PATIENCE_S = 60.0
Trained = tuple[str, Any, list[str], list[int]]


class Failing:
    """Step that fails on worker 1 in a given way; both workers record the parts of each batch."""

    def __init__(self, network: nn.Module, task: Classification, fails: str) -> None:
        self.step = NetworkStep(network, task, (1, 8, 8))
        self.fails = fails
        self.parts: list[int] = []

    def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
        self.parts.append(moment.parts)
        if torch.distributed.get_rank() == 1 and moment.step == 3:
            if self.fails == "memory" or (self.fails == "memory once" and moment.parts == 1):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            if self.fails == "other":
                raise ZeroDivisionError("division by zero")
            if self.fails == "ours":
                raise DataError("image 7 is damaged")
        return self.step(batch, moment)


class FailingAdamW(torch.optim.AdamW):
    """Optimiser that runs out of memory at its first update, on worker 1."""

    def step(self, closure: Any = None) -> None:
        if torch.distributed.get_rank() == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
        super().step(closure)


def failing_losses(
    space: SearchSpace, rng: random.Random, random_subnets: int, *, step: int, losses: Callable
) -> list[Architecture]:
    """Sampling rule that fails on worker 1 before the losses, which are a collective operation."""
    networks = [space.largest(), space.smallest()]
    if step == 2 and torch.distributed.get_rank() == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")
    losses(networks)
    return networks


def trained(
    rank: int, place: str, fails: str, space: MobileNetSpace, task: Classification, split: Split,
    queue: Queue[tuple[int, Trained]],
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    torch.manual_seed(0)
    notes: list[str] = []
    parts: list[int] = []
    try:
        if fails == "losses":
            network: nn.Module = space.supernet()
            step: Any = SupernetStep(network, task, sampling=f"{__name__}:failing_losses")
        else:
            network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
            step = Failing(network, task, fails)
            parts = step.parts
        config = CONFIG
        if fails == "update":
            config = replace(CONFIG, optimizer=f"{__name__}:FailingAdamW")
        fit(network, step, split, config, 0, rank=rank, world=2,
            on_row=lambda row: notes.append(row.note))  # fmt: skip
        found: Trained = "", [p.tolist() for p in network.parameters()], notes, parts
    except Exception as error:
        found = type(error).__name__, str(error), notes, parts
    queue.put((rank, found))
    torch.distributed.destroy_process_group()


@pytest.fixture
def together(
    small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData, tmp_path: Path
) -> Callable[[str], list[Trained]]:
    """Return a function that trains with two workers and returns the outcome of each."""

    def run(fails: str) -> list[Trained]:
        context = multiprocessing.get_context("fork")
        queue: Any = context.Queue()
        shared = f"file://{tmp_path / fails.replace(' ', '-')}", fails, small_space, digits_task
        workers = [
            context.Process(target=trained, args=(rank, *shared, few_digits.train, queue))
            for rank in range(2)
        ]
        for worker in workers:
            worker.start()
        try:
            found = dict(queue.get(timeout=PATIENCE_S) for _ in workers)
        finally:
            for worker in workers:
                worker.join(5)
                worker.kill()
        return [found[0], found[1]]

    return run


@pytest.mark.slow
def test_memory_error_of_one_worker_halves_the_images_of_all(
    together: Callable[[str], list[Trained]],
) -> None:
    plenty = together("nothing")
    one, other = together("memory once")
    assert one[0] == other[0] == ""
    assert one[1] == other[1]
    assert one[3] == other[3] == [1, 1, 1, 1, 2, *[2] * 6]  # both begin step 3 again
    for found, expected in zip(one[1], plenty[0][1], strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
    assert "out of memory at step 3 with 15 images at a time; from here on 8" in one[2][3]


@pytest.mark.parametrize(
    ("fails", "kind", "said"),
    [
        ("memory", DeviceError, ("out of memory at step 3", "and then with 8", "2.00 GiB")),
        ("update", DeviceError, ("out of memory at step 0", "1.00 GiB")),
        ("ours", DataError, ("image 7 is damaged",)),
    ],
)
def test_failure_of_one_worker_ends_all_with_its_reason(
    together: Callable[[str], list[Trained]], fails: str, kind: type, said: tuple[str, ...]
) -> None:
    for name, message, _, _ in together(fails):
        assert name == kind.__name__
        assert all(part in message for part in said), message


def test_foreign_error_of_one_worker_is_reported_by_the_others(
    together: Callable[[str], list[Trained]],
) -> None:
    one, other = together("other")
    assert one[:2] == (WorkerError.__name__, "worker 1 of the training failed: division by zero")
    assert other[:2] == ("ZeroDivisionError", "division by zero")


def test_failure_before_a_collective_ends_all_workers(
    together: Callable[[str], list[Trained]],
) -> None:
    for name, message, _, _ in together("losses"):
        assert name == DeviceError.__name__
        assert "out of memory at step 2" in message
        assert "3.00 GiB" in message


def test_single_worker_raises_the_original_error(
    digits_task: Classification, few_digits: ImageData
) -> None:
    def wrong(batch: Batch, moment: StepContext) -> tuple[float, float]:
        moment.workers.agree(ConfigError("no"))
        return 0.0, 0.0

    with pytest.raises(ConfigError, match="no"):
        fit(nn.Linear(2, 2), wrong, few_digits.train, CONFIG, 0)
