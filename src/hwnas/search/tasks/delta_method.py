"""Standard errors of functions of means, by the delta method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

__all__ = ["with_standard_errors"]


def with_standard_errors(
    function: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    statistics: Mapping[str, Tensor],
) -> dict[str, tuple[float, float]]:
    """Return the values of a function of means over images, with their standard errors.

    Delta method (van der Vaart, "Asymptotic Statistics", 1998, theorem 3.1): with x_i the
    statistics of image i, m their mean and g the function,

        standard error of g(m) = standard deviation of (grad g(m) . x_i) / sqrt(n).

    If g is a mean itself, this is the standard error of the mean. The approximation improves with
    the number of images. For the intersection over union of a class that only three images contain,
    it is unreliable.

    Args:
        function: Differentiable function from means, float64 by name, to scalars by name. Each mean
            has the shape of the statistic without its first dimension.
        statistics: Statistics (N, ...) by name, one entry per image.

    Returns:
        For each name of the function, its value and its standard error; the standard error is NaN
        if N is 1.
    """
    entries = {name: values.detach().double() for name, values in statistics.items()}
    with torch.enable_grad():
        means = {name: values.mean(dim=0).requires_grad_() for name, values in entries.items()}
        found = function(means)
        return {name: (float(v.detach()), _error(v, means, entries)) for name, v in found.items()}


def _error(value: Tensor, means: Mapping[str, Tensor], entries: Mapping[str, Tensor]) -> float:
    gradients = torch.autograd.grad(
        value, list(means.values()), retain_graph=True, allow_unused=True
    )
    n = len(next(iter(entries.values())))
    moved = torch.zeros(n, dtype=torch.float64)
    for values, gradient in zip(entries.values(), gradients, strict=True):
        if gradient is not None:
            moved += (values * gradient).reshape(n, -1).sum(dim=1)
    return float(moved.std() / n**0.5) if n > 1 else float("nan")
