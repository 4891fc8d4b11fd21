"""Evaluation of ONNX files on labelled images, in the runtime that they ship for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hwnas.deploy.io import Preprocessing
from hwnas.deploy.variants.sweep import Quality
from hwnas.search.data.image_data import Split
from hwnas.search.evaluation.scoring import check_finite
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.task import Task

__all__ = ["SplitEvaluator"]


@dataclass(frozen=True)
class SplitEvaluator:
    """Evaluator of a network's outputs for the images of a split.

    Attributes:
        task: Task that defines the metrics.
        split: Images and their targets.
        name: Name of the split.
        preprocessing: Preprocessing from images to the network's input.
        batch: Number of images in a batch.
        any_size: Whether the network also accepts smaller batches; if not, the images of the last,
            incomplete batch are left out.
    """

    task: Task
    split: Split
    name: str
    preprocessing: Preprocessing
    batch: int
    any_size: bool = True

    def inputs(self) -> Iterator[NDArray[np.float32]]:
        """Yield batches (N, C, height, width)."""
        for rows in self._rows():
            images, _ = self.split.take(rows)
            yield self.preprocessing(images).contiguous().numpy()

    def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
        """Return the first metric of the outputs, and its loss relative to the expected outputs.

        Raises:
            NonFiniteOutput: One of the outputs is not finite.
        """
        for found in (outputs, expected):
            check_finite(torch.from_numpy(found), f"{self.name} images")
        targets = np.concatenate([self.split.take(rows)[1] for rows in self._rows()])
        metric = self.task.metrics[0]
        sign = 1.0 if metric.direction == "maximize" else -1.0
        own, full = (self._metric(found, targets) for found in (outputs, expected))
        loss = full - own
        return Quality(
            metric.name,
            metric.direction,
            own.value,
            own.standard_error,
            sign * loss.value,
            loss.standard_error,
            metric.unit,
            len(targets),
            self.name,
        )

    def _metric(self, outputs: NDArray[Any], targets: NDArray[Any]) -> MetricValue:
        metrics = SplitMetrics(self.task)
        metrics.add(torch.from_numpy(outputs), torch.from_numpy(targets))
        return metrics.values()[self.task.metrics[0].name]

    def _rows(self) -> Iterator[NDArray[np.int64]]:
        count = len(self.split)
        end = count if self.any_size else count - count % self.batch
        for start in range(0, end, self.batch):
            yield np.arange(start, min(start + self.batch, end))
