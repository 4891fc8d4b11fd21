"""Scores of networks on the images of a split."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.errors import NonFiniteOutput
from hwnas.search.data.image_data import Split
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.task import Task
from hwnas.search_spaces import with_statistics

__all__ = [
    "Evaluation",
    "Fidelity",
    "SplitName",
    "check_finite",
    "merit",
    "outputs_of",
    "recalibrate",
    "score",
]

SplitName = Literal["validation", "test"]

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
    metrics = SplitMetrics(task)
    for outputs, targets in outputs_of(network, task, split, input_shape, batch_size):
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


def outputs_of(
    network: nn.Module,
    task: Task,
    split: Split,
    input_shape: tuple[int, int, int],
    batch_size: int = 256,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a network's outputs for all images of a split, in batches, with the targets.

    Args:
        network: See `score`; put into evaluation mode.
        task: Task that gives the preprocessing.
        split: Images and targets, in whose order the outputs are.
        input_shape: Channels, height and width that the network takes.
        batch_size: Largest number of images in a batch.

    Yields:
        Outputs float32 (n, ...) and targets (n, ...), on the CPU.
    """
    network.eval()
    for images, targets in _batches(split, task, input_shape, batch_size, _device(network)):
        with torch.no_grad():
            outputs = network(images).float().cpu()
        yield outputs, targets


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
    (Yu and Huang, ICCV 2019). The ranges of quantised activations are set likewise.

    Args:
        network: Network, or supernet whose active subnet is recalibrated; left in evaluation mode.
        task: Task that gives the preprocessing.
        split: Training images, used without augmentation.
        input_shape: Channels, height and width that the network takes.
        batch_size: Largest number of images in a batch.
    """
    network.eval()
    kept = with_statistics(network)
    if not kept:
        return
    before = [module.momentum for module in kept]
    batches = _batches(split, task, input_shape, batch_size, _device(network))
    with torch.no_grad():
        for k, (images, _) in enumerate(batches):
            for module in kept:
                module.train()
                module.momentum = 1 / (k + 1)
            network(images)
    for module, momentum in zip(kept, before, strict=True):
        module.eval()
        module.momentum = momentum


def merit(task: Task, found: Evaluation) -> float:
    """Return the first metric of a task, negated if lower is better."""
    metric = task.metrics[0]
    value = found.values[metric.name]
    return value if metric.direction == "maximize" else -value
