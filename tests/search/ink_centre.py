"""User-defined task for tests: find the position of the white dot on an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.task import Metric


def blots(n: int = 60) -> dict[str, NDArray]:
    """Return grey images with one white dot each; a target is the dot's column and row, in 0..1."""
    rng = np.random.default_rng(0)
    images = np.zeros((n, 8, 8), np.uint8)
    rows, columns = rng.integers(0, 8, (2, n))
    images[np.arange(n), rows, columns] = 255
    targets = np.stack([columns, rows], axis=1) / 7.0
    cut = n * 3 // 4
    return {
        "x_train": images[:cut],
        "y_train": targets[:cut],
        "x_test": images[cut:],
        "y_test": targets[cut:],
    }


@dataclass(frozen=True)
class InkCentre:
    preprocessing: Preprocessing
    radius: float = 0.1

    name = "ink-centre"
    metrics = (
        Metric("distance", "minimize", "image widths"),
        Metric("hits", "maximize", "fraction"),
    )
    outputs = 2
    meaning = OutputMeaning("values", ("column", "row"))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(dim=1).mean()

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        return self.loss(outputs, teacher_outputs.detach())

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        distance = torch.linalg.vector_norm(outputs - targets, dim=1)
        return {"distance": distance, "hits": (distance <= self.radius).float()}

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(means)


def task(data: ImageData, radius: float = 0.1) -> InkCentre:
    return InkCentre(data.preprocessing, radius)
