"""Statistics and threshold that a trained network takes from images besides its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.scoring import outputs_of, recalibrate
from hwnas.search.tasks.task import Task
from hwnas.search_spaces.early_exit import EarlyExitNetwork

__all__ = ["fit_exit", "settle"]

_EXIT_IMAGES = 2048
"""Most validation images for a threshold: the share is then known to about one percent."""


def settle(
    network: nn.Module,
    task: Task,
    data: ImageData,
    input_shape: tuple[int, int, int],
    recalibration_images: int,
) -> None:
    """Recalibrate BatchNorm on training images, then fit the exit on validation images.

    Args:
        network: Network, left in evaluation mode.
        task: Task that gives the preprocessing.
        data: Images.
        input_shape: Channels, height and width that the network takes.
        recalibration_images: Number of training images to recalibrate on.
    """
    recalibrate(network, task, data.train.first(recalibration_images), input_shape)
    fit_exit(network, task, data, input_shape)


def fit_exit(
    network: nn.Module, task: Task, data: ImageData, input_shape: tuple[int, int, int]
) -> None:
    """Fit the threshold of an early exit, if a network has one, on validation images.

    Their labels are not used. On training images, the network is more confident than on new ones,
    so that fewer of those would leave than wanted.

    Args:
        network: Network, left in evaluation mode.
        task: Task that gives the preprocessing.
        data: Images.
        input_shape: Channels, height and width that the network takes.
    """
    if not isinstance(network, EarlyExitNetwork) or network.head is None:
        return
    split = data.validation.first(min(_EXIT_IMAGES, len(data.validation)))
    batches = outputs_of(_Confidence(network), task, split, input_shape)
    network.head.fit(torch.cat([confidence for confidence, _ in batches]))


class _Confidence(nn.Module):
    """Largest class probability at the exit of a network: (N, C, H, W) -> (N, 1)."""

    def __init__(self, network: EarlyExitNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.paths(images)[2]
