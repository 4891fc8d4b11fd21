"""Networks as files in the number format that they ship in, to be scored as such."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.deploy.export.to_onnx import export_traced
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.targets.number_format import onnxruntime_target
from hwnas.deploy.targets.target import Target
from hwnas.deploy.variants import VARIANTS, VariantInputs
from hwnas.search.data.split import Split
from hwnas.search.tasks.task import Task
from hwnas.search_spaces.quantised.attached import quantised_layers

__all__ = ["Executed", "calibration_batches", "converted_file", "scorable"]

_CALIBRATION_IMAGES = 256
_CALIBRATION_BATCH = 32
_SCORED_FORMATS = ("int8",)
"""Formats that change scores by more than their noise; formats of 16 bits do not."""


class Executed(nn.Module):
    """Module that runs an ONNX file in its runtime, in place of the exported network.

    Args:
        model: ONNX file that accepts batches of any size.
        target: Target that runs it; ONNX Runtime on this machine if None.
    """

    def __init__(self, model: Path, target: Target | None = None) -> None:
        super().__init__()
        self._session = open_session(model, target or onnxruntime_target(model))

    def forward(self, images: Tensor) -> Tensor:
        """Return the output (N, ...) of inputs (N, C, H, W)."""
        return torch.from_numpy(self._session.run(images.contiguous().numpy()))


@contextlib.contextmanager
def scorable(
    network: nn.Module,
    wanted: str | None,
    task: Task,
    split: Split,
    input_shape: tuple[int, int, int],
) -> Iterator[nn.Module]:
    """Yield a network as it computes in a number format, for `score`.

    In int8, it is exported, quantised as finalists are, and run in ONNX Runtime. Formats of 16 bits
    change scores by less than their noise, so there the network itself is scored; so is a network
    that rounds its weights and activations itself.

    Args:
        network: Trained network; unchanged.
        wanted: Number format; None for that of the network.
        task: Task that gives the preprocessing.
        split: Training images, used without augmentation.
        input_shape: Channels, height and width that the network takes.

    Raises:
        ArtifactError: The network cannot be exported or converted.
    """
    if wanted not in _SCORED_FORMATS or any(quantised_layers(network)):
        yield network
        return
    preprocessing = task.preprocessing.at(*input_shape[1:])
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "network.onnx")
        export_traced(network, input_shape, model)
        yield Executed(converted_file(model, wanted, split, preprocessing))


def converted_file(model: Path, wanted: str, split: Split, preprocessing: Preprocessing) -> Path:
    """Return a network's file in a number format, made beside the given one if need be.

    Args:
        model: ONNX file in single precision.
        wanted: Number format.
        split: Training images, from which ranges are taken.
        preprocessing: Preprocessing from images to the network's input.

    Raises:
        ArtifactError: The network cannot be converted.
    """
    images = calibration_batches(split, preprocessing, _CALIBRATION_BATCH)
    to = model.with_name(f"{model.stem}.{wanted}.onnx")
    return VARIANTS[wanted].make(VariantInputs(model, images), to).model


def calibration_batches(
    split: Split, preprocessing: Preprocessing, batch: int
) -> list[NDArray[np.float32]]:
    """Return preprocessed training images (batch, C, height, width) to calibrate ranges with."""
    count = max(1, min(_CALIBRATION_IMAGES, len(split)) // batch)
    some = split.first(count * batch)
    parts = (some.take(part)[0] for part in np.array_split(np.arange(len(some)), count))
    return [preprocessing(part).contiguous().numpy() for part in parts]
