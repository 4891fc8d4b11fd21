"""Standard errors of metrics, from the influence of each image on the metric (delta method)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["MetricValue", "function_of_means"]


@dataclass(frozen=True, eq=False)
class MetricValue:
    """Value of a metric on a split, with the influence of each image on it.

    Influences are those of the delta method (van der Vaart, "Asymptotic Statistics", 1998, theorem
    3.1) and its extension to functions of all images (section 20.1): the metric less its
    expectation is about the mean of the influences. The approximation improves with the number of
    images. For the intersection over union of a class that only three images contain, it is
    unreliable.

    Attributes:
        value: Value of the metric.
        influence: Influence of each image, float64 (N,), about 0 on average.
    """

    value: float
    influence: Tensor

    @property
    def standard_error(self) -> float:
        """Standard error of the value, from the sampling of images; NaN if there is only one."""
        n = len(self.influence)
        return float(self.influence.std() / n**0.5) if n > 1 else float("nan")

    def __sub__(self, other: MetricValue) -> MetricValue:
        """Return the difference of two values for the same images."""
        return MetricValue(self.value - other.value, self.influence - other.influence)


def function_of_means(
    function: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    statistics: Mapping[str, Tensor],
) -> dict[str, MetricValue]:
    """Return the values of a function of means over images.

    With x_i the statistics of image i, m their mean and g the function, the influence of the image
    is grad g(m) . (x_i - m). If g is a mean itself, its standard error is that of the mean.

    Args:
        function: Differentiable function from means, float64 by name, to scalars by name. Each mean
            has the shape of the statistic without its first dimension.
        statistics: Statistics (N, ...) by name, one entry per image.
    """
    entries = {name: values.detach().double() for name, values in statistics.items()}
    with torch.enable_grad():
        means = {name: values.mean(dim=0).requires_grad_() for name, values in entries.items()}
        found = function(means)
        return {
            name: MetricValue(float(value.detach()), _influence(value, means, entries))
            for name, value in found.items()
        }


def _influence(value: Tensor, means: Mapping[str, Tensor], entries: Mapping[str, Tensor]) -> Tensor:
    gradients = torch.autograd.grad(
        value, list(means.values()), retain_graph=True, allow_unused=True
    )
    n = len(next(iter(entries.values())))
    moved = torch.zeros(n, dtype=torch.float64)
    for values, gradient in zip(entries.values(), gradients, strict=True):
        if gradient is not None:
            moved += (values * gradient).reshape(n, -1).sum(dim=1)
    return moved - moved.mean()
