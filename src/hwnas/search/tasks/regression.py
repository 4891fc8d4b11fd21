"""Regression: one or more numbers per image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.errors import ConfigError, DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.task import Metric, check_metrics

__all__ = ["PLUGINS", "Regression", "regression"]

Loss = Literal["squared", "absolute", "huber"]
_LOSSES: Mapping[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "squared": functional.mse_loss,
    "absolute": functional.l1_loss,
    "huber": functional.huber_loss,
}
_ROOT_MEAN_SQUARED, _MEAN_ABSOLUTE, _R2 = "root_mean_squared_error", "mean_absolute_error", "r2"
_METRICS = (_ROOT_MEAN_SQUARED, _MEAN_ABSOLUTE, _R2)


@dataclass(frozen=True)
class Regression:
    """Regression task: each image has K numbers.

    Networks learn standardised numbers: less `offset`, divided by `scale`. Metrics, and the answers
    of a bundle, are in the units of the data.

    Attributes:
        names: Names of the numbers; empty if they have none.
        preprocessing: Preprocessing at the size of the data's own images.
        offset: Mean of each number over the training images, K of them.
        scale: Standard deviation of each number over the training images, K of them.
        error: Loss of a standardised number: ``"squared"``, ``"absolute"``, or ``"huber"``, which
            is squared up to 1 and linear beyond (Huber, "Robust Estimation of a Location
            Parameter", 1964).
        metric_names: Names of the metrics, of ``"root_mean_squared_error"``,
            ``"mean_absolute_error"`` and ``"r2"``; training reports the first.

    Raises:
        ConfigError: The loss or a metric is unknown, or a metric is named twice.
    """

    names: tuple[str, ...]
    preprocessing: Preprocessing
    offset: tuple[float, ...]
    scale: tuple[float, ...]
    error: Loss = "squared"
    metric_names: tuple[str, ...] = (_ROOT_MEAN_SQUARED,)

    def __post_init__(self) -> None:
        check_metrics(self.metric_names, _METRICS)
        if self.error not in _LOSSES:
            raise ConfigError(f"task.loss is {self.error!r}; expected one of {', '.join(_LOSSES)}")

    @property
    def name(self) -> str:
        """Name of the task, ``"regression"``."""
        return "regression"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the task; errors are in the unit of the data."""
        units = {_R2: Metric(_R2, "maximize", "share of the variance")}
        return tuple(
            units.get(name, Metric(name, "minimize", "units of the data"))
            for name in self.metric_names
        )

    @property
    def outputs(self) -> int:
        """Number of outputs, K."""
        return len(self.offset)

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: standardised numbers."""
        return OutputMeaning("values", self.names, self.scale, self.offset)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean error of standardised numbers."""
        offset, scale = (outputs.new_tensor(each) for each in (self.offset, self.scale))
        return _LOSSES[self.error](outputs.float(), (targets - offset) / scale)

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return the mean error against the teacher's numbers."""
        return _LOSSES[self.error](outputs.float(), teacher_outputs.detach().float())

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return squares and absolute values of errors, and targets and their squares, (N, K).

        Targets are less `offset`, so that their variance is not a difference of large numbers.
        """
        offset = outputs.new_tensor(self.offset, dtype=torch.float64)
        wanted = targets.double() - offset
        errors = outputs.double() * outputs.new_tensor(self.scale, dtype=torch.float64) - wanted
        return {
            "square": errors.square(),
            "absolute": errors.abs(),
            "target": wanted,
            "target_square": wanted.square(),
        }

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the whole split.

        The root of the mean squared error, and the mean absolute error, are over images and
        numbers. ``r2`` is the mean over numbers of the share of the variance that is explained; a
        number without variance is left out.
        """
        found = {
            _ROOT_MEAN_SQUARED: means["square"].mean().sqrt(),
            _MEAN_ABSOLUTE: means["absolute"].mean(),
        }
        if _R2 in self.metric_names:
            variance = means["target_square"] - means["target"].square()
            there = variance > 0
            found[_R2] = (1 - means["square"][there] / variance[there]).mean()
        return {name: found[name] for name in self.metric_names}


def regression(
    data: ImageData,
    loss: str = "squared",
    metrics: Sequence[str] = (_ROOT_MEAN_SQUARED,),
    names: Sequence[str] = (),
) -> Regression:
    """Return the regression task of a data set.

    Args:
        data: Data set that gives the numbers, and size and colour statistics of the images.
        loss: Loss: ``"squared"``, ``"absolute"`` or ``"huber"``; see `Regression`.
        metrics: Names of the metrics; see `Regression`.
        names: Names of the numbers of an image, in their order; by default those of the data, if
            it has any.

    Raises:
        ConfigError: The loss or a metric is unknown, or there is not a name for each number.
        DataError: The targets of the data are classes or masks, or a number is always the same.
    """
    if data.kind != "values":
        raise DataError(
            f"task regression needs values, but the targets are {data.kind}; name another task, or "
            "let data.source give floats (N, K)"
        )
    data.check_numbers("regression")
    values = data.train.targets.astype(np.float64)
    offset, scale = values.mean(axis=0), values.std(axis=0)
    names = tuple(names) or data.value_names or ()
    if names and len(names) != len(offset):
        raise ConfigError(
            f"task.names has {len(names)} names, but each image has {len(offset)} numbers; give "
            "one for each"
        )
    constant = np.flatnonzero(scale <= 1e-9 * np.abs(offset))
    if len(constant):
        raise DataError(
            f"number {constant[0]} of the targets is {offset[constant[0]]:g} for all training "
            "images, so there is nothing to learn; leave it out"
        )
    return Regression(
        names,
        data.preprocessing,
        tuple(offset.tolist()),
        tuple(scale.tolist()),
        loss,  # type: ignore[arg-type]  # checked by the task
        tuple(metrics),
    )


PLUGINS = (
    Plugin(
        "task",
        "regression",
        regression,
        "Numbers for each image; metrics root mean squared error, mean absolute error, R2",
    ),
)
