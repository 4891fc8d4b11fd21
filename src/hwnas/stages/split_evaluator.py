"""Evaluation of ONNX files on labelled images, in the runtime that they ship for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.file_formats.quality_check import QualityCheck
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.runtimes.runtime import Computation
from hwnas.deploy.variants.quality import Quality
from hwnas.search.data.image_data import ImageData, Split
from hwnas.search.evaluation.scoring import check_finite
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.task import Task

__all__ = ["IMAGES_AT_ONCE", "SplitEvaluator", "check_on_test_images"]

IMAGES_AT_ONCE = 64
_CHECKED_IMAGES = 2_000
"""Images on which a conversion is checked: some formats take a hundred times as long an image."""


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
            yield self.preprocessing(self.split.take(rows)[0]).contiguous().numpy()

    def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
        """Return the first metric of the outputs, and its loss relative to the expected outputs.

        Raises:
            NonFiniteOutput: One of the outputs is not finite.
        """
        targets = np.concatenate([self.split.take(rows)[1] for rows in self._rows()])
        own, full = (self._metrics([(found, targets)]) for found in (outputs, expected))
        return self.compare(own, full)[0]

    def metrics(
        self, session: Computation, takes_pixels: bool = False
    ) -> Mapping[str, MetricValue]:
        """See `FileEvaluator.metrics`."""
        return self._metrics(self._answers(session, takes_pixels))

    def compare(
        self, own: Mapping[str, MetricValue], full: Mapping[str, MetricValue]
    ) -> tuple[Quality, ...]:
        """See `FileEvaluator.compare`."""
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
                self.count,
                self.name,
            )
            qualities.append(quality)
        return tuple(qualities)

    def _metrics(
        self, answers: Iterable[tuple[NDArray[Any], NDArray[Any]]]
    ) -> Mapping[str, MetricValue]:
        """Return the metrics of batches of outputs and their targets."""
        metrics = SplitMetrics(self.task)
        for found, targets in answers:
            outputs = torch.from_numpy(found)
            check_finite(outputs, f"{self.name} images")
            metrics.add(outputs, torch.from_numpy(targets))
        return metrics.values()

    def _answers(
        self, session: Computation, takes_pixels: bool
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        how = self.preprocessing
        for rows in self._rows():
            images, targets = self.split.take(rows)
            batch: Any = how.pixels(images) if takes_pixels else how(images).contiguous().numpy()
            yield session.run(batch), targets

    @property
    def count(self) -> int:
        """Number of images that are evaluated."""
        count = len(self.split)
        return count if self.any_size else count - count % self.batch

    def _rows(self) -> Iterator[NDArray[np.int64]]:
        end = self.count
        for start in range(0, end, self.batch):
            yield np.arange(start, min(start + self.batch, end))


def check_on_test_images(
    task: Task, data: ImageData, bundle: Bundle, max_loss: float = math.inf
) -> QualityCheck:
    """Return a check of files that a network is converted to, on at most 2,000 test images.

    Args:
        task: Task that defines the metrics.
        data: Images and their targets.
        bundle: Bundle with the network.
        max_loss: Largest loss of the first metric, in the metric's unit.

    Raises:
        ConfigError: ``max_loss`` is negative.
    """
    some = data.test.first(_CHECKED_IMAGES)
    evaluator = SplitEvaluator(task, some, "test", bundle.preprocessing, IMAGES_AT_ONCE)
    return QualityCheck(evaluator, bundle.onnx_file, max_loss)
