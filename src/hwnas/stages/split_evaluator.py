"""Evaluation of ONNX files on labelled images, in the runtime that they ship for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hwnas.deploy.file_formats.quality_check import QualityCheck
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.variants.quality import Quality
from hwnas.search.data.image_data import ImageData, Split
from hwnas.search.evaluation.scoring import check_finite
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.task import Task

__all__ = ["IMAGES_AT_ONCE", "SplitEvaluator", "check_on_test_images"]

IMAGES_AT_ONCE = 64


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
        for images in self._images():
            yield self.preprocessing(images).contiguous().numpy()

    def pixels(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the same batches as pixels, uint8 (N, height, width, C)."""
        for images in self._images():
            yield self.preprocessing.pixels(images)

    def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
        """Return the first metric of the outputs, and its loss relative to the expected outputs.

        Raises:
            NonFiniteOutput: One of the outputs is not finite.
        """
        return self.qualities(outputs, expected)[0]

    def qualities(self, outputs: NDArray[Any], expected: NDArray[Any]) -> tuple[Quality, ...]:
        """Return each metric of the outputs, and its loss relative to the expected outputs.

        Raises:
            NonFiniteOutput: One of the outputs is not finite.
        """
        targets = np.concatenate([self.split.take(rows)[1] for rows in self._rows()])
        own, full = (self._metrics(found, targets) for found in (outputs, expected))
        qualities = []
        for metric in self.task.metrics:
            value, loss = own[metric.name], full[metric.name] - own[metric.name]
            sign = 1.0 if metric.direction == "maximize" else -1.0
            quality = Quality(
                metric.name,
                metric.direction,
                value.value,
                value.standard_error,
                sign * loss.value,
                loss.standard_error,
                metric.unit,
                len(targets),
                self.name,
            )
            qualities.append(quality)
        return tuple(qualities)

    def _metrics(self, outputs: NDArray[Any], targets: NDArray[Any]) -> Mapping[str, MetricValue]:
        check_finite(torch.from_numpy(outputs), f"{self.name} images")
        metrics = SplitMetrics(self.task)
        metrics.add(torch.from_numpy(outputs), torch.from_numpy(targets))
        return metrics.values()

    def _images(self) -> Iterator[NDArray[np.uint8]]:
        for rows in self._rows():
            yield self.split.take(rows)[0]

    def _rows(self) -> Iterator[NDArray[np.int64]]:
        count = len(self.split)
        end = count if self.any_size else count - count % self.batch
        for start in range(0, end, self.batch):
            yield np.arange(start, min(start + self.batch, end))


def check_on_test_images(
    task: Task,
    data: ImageData,
    preprocessing: Preprocessing,
    model: Path,
    max_loss: float = math.inf,
) -> QualityCheck:
    """Return a check of files that a network is converted to, on test images.

    Args:
        task: Task that defines the metrics.
        data: Images and their targets.
        preprocessing: Preprocessing from images to the network's input.
        model: ONNX file in single precision, for batches of any size, that losses are against.
        max_loss: Largest loss of the first metric, in the metric's unit.

    Raises:
        ConfigError: ``max_loss`` is negative.
    """
    evaluator = SplitEvaluator(task, data.test, "test", preprocessing, IMAGES_AT_ONCE)
    return QualityCheck(evaluator, model, max_loss)
