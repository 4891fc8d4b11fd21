"""Networks at chance: no better than constant outputs, as trained or after a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.deploy.quantization.quantize import Int8Quantizer
from hwnas.deploy.variants.mixed import sensitivities
from hwnas.errors import ArtifactError
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.converted import Executed, calibration_batches
from hwnas.search.evaluation.scoring import Evaluation, merit, score
from hwnas.search.tasks.task import Task
from hwnas.stages.run_inputs import RunInputs

__all__ = ["constant_score", "is_at_chance", "refuse_chance"]

_ERRORS = 2.0  # standard errors by which a score has to be better than that of constant outputs
_BATCH = 32


class _Constant(nn.Module):
    """Network whose outputs do not depend on its inputs.

    Args:
        output: Output of any image, of shape (...).
    """

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs (N, ...) of N images."""
        return self._output.expand(len(images), *self._output.shape)


def refuse_chance(
    run_inputs: RunInputs,
    plain: Path,
    number_format: str,
    shape: tuple[int, int, int],
    found: Evaluation,
) -> None:
    """Raise if a network is no better than constant outputs once it is converted, and was before.

    Args:
        run_inputs: Data and task of the run.
        plain: Network in single precision, as an ONNX file.
        number_format: Number format of the converted network.
        shape: Channels, height and width that the network takes.
        found: Scores of the converted network on validation images.

    Raises:
        ArtifactError: The converted network is at chance.
    """
    task, data, network = run_inputs.task, run_inputs.data, Executed(plain)
    constant = constant_score(network, task, data, shape)
    if not is_at_chance(task, found, constant) or is_at_chance(
        task, score(network, task, data.validation, shape, "validation"), constant
    ):
        return
    metric = task.metrics[0].name
    batches = _batches(task, data, shape)
    layer = f"; {_most_sensitive(plain, batches)}" if number_format == "int8" else ""
    raise ArtifactError(
        f"in {number_format} the network has {metric} {found.values[metric]:.3g} on validation "
        f"images, no better than constant outputs ({constant.values[metric]:.3g}){layer}"
    )


def constant_score(
    network: nn.Module, task: Task, data: ImageData, shape: tuple[int, int, int]
) -> Evaluation:
    """Return the scores on validation images of constant outputs: the mean of a network's.

    Args:
        network: Network from (N, *shape) to outputs of the task.
        task: Task that gives preprocessing and metrics.
        data: Images of the task.
        shape: Channels, height and width that the network takes.
    """
    with torch.no_grad():
        outputs = [network(torch.from_numpy(batch)) for batch in _batches(task, data, shape)]
    mean = torch.cat(outputs).mean(0)
    return score(_Constant(mean), task, data.validation, shape, "validation")


def is_at_chance(task: Task, found: Evaluation, constant: Evaluation) -> bool:
    """Return whether scores are not clearly better than those of constant outputs."""
    margin = merit(task, found) - merit(task, constant)
    return margin <= _ERRORS * found.standard_errors[task.metrics[0].name]


def _batches(
    task: Task, data: ImageData, shape: tuple[int, int, int]
) -> Sequence[NDArray[np.float32]]:
    return calibration_batches(data.train, task.preprocessing.at(*shape[1:]), _BATCH)


def _most_sensitive(plain: Path, batches: Sequence[NDArray[np.float32]]) -> str:
    with Int8Quantizer(plain, batches) as quantizer:
        worst = sensitivities(plain, quantizer, batches)[0]
    return f"quantising {worst.unit.name!r} alone changes the outputs most"
