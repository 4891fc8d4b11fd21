"""Quality of a network's file on images with targets, against the network in single precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.runtimes.runtime import Computation
from hwnas.interval import (
    Interval,
    is_proportion,
    metric_interval,
    paired_difference_interval,
)

__all__ = ["FileEvaluator", "OutputEvaluator", "Quality"]


@dataclass(frozen=True)
class Quality:
    """Metric of a file in its runtime, on images with targets.

    Attributes:
        metric: Name of the metric.
        direction: Direction in which the metric is better.
        value: Value of this file.
        standard_error: Standard error of the value.
        loss: Loss against the network in single precision, on the same images; negative if better.
        loss_standard_error: Standard error of the loss.
        unit: Unit of these four numbers.
        n: Number of images.
        split: Split of the images.
    """

    metric: str
    direction: Literal["maximize", "minimize"]
    value: float
    standard_error: float
    loss: float
    loss_standard_error: float
    unit: str
    n: int
    split: str

    @property
    def interval(self) -> Interval:
        """95 % confidence interval of the value."""
        proportion = is_proportion(self.unit)
        return metric_interval(self.value, self.standard_error, self.n, proportion=proportion)

    @property
    def loss_interval(self) -> Interval:
        """95 % confidence interval of the loss, which is a difference on the same images."""
        error, proportion = self.loss_standard_error, is_proportion(self.unit)
        return paired_difference_interval(self.loss, error, self.n, proportion=proportion)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with both 95 % intervals."""
        ends = {"interval": self.interval.ends, "loss_interval": self.loss_interval.ends}
        return {"kind": "evaluated", **asdict(self), **ends}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quality:
        """Return the quality from the JSON object that `to_json` made.

        Raises:
            KeyError: A field is missing.
        """
        return cls(**{each.name: data[each.name] for each in fields(cls)})


class OutputEvaluator(Protocol):
    """Evaluator of outputs on images with targets."""

    def inputs(self) -> Iterable[NDArray[np.float32]]:
        """Return batches (N, ...) of preprocessed images, the same at every call."""

    def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
        """Return the quality of the outputs for all inputs, given those of the network in fp32."""


class FileEvaluator(Protocol):
    """Evaluator of files that are loaded in their runtimes, batch by batch."""

    def metrics(self, session: Computation, takes_pixels: bool = False) -> Any:
        """Return what `compare` needs of a file's outputs for all images.

        Args:
            session: The loaded file.
            takes_pixels: Whether it takes pixels, uint8 (N, H, W, C), instead of preprocessed
                images.

        Raises:
            NonFiniteOutput: One of the outputs is not finite.
        """

    def compare(self, own: Any, full: Any) -> tuple[Quality, ...]:
        """Return each metric of a file, and its loss against the network in single precision.

        Args:
            own: Result of `metrics` for the file.
            full: The same for the network in single precision.
        """
