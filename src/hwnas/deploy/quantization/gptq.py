"""Rounding of one layer's weights by GPTQ, which lets later weights make up for earlier errors.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(ICLR 2023), after Frantar and Alistarh, "Optimal Brain Compression" (NeurIPS 2022). Weights are
rounded one input at a time. The error of each is spread over the weights that are not rounded yet,
by the inverse of the Hessian of the squared error of the layer's outputs. The departures from the
paper: the inputs with the largest second moment come first, as in the authors' code, and an output
channel stays at round-to-nearest where that has the smaller error.

Shapes: G groups of a convolution (1 otherwise), R output channels of a group, K weights of a
channel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hwnas.deploy.sparsity.hessian import damped_inverse

__all__ = ["compensated", "output_errors"]


def output_errors(steps: Tensor, weights: Tensor, hessian: Tensor) -> Tensor:
    """Return the squared error of each output channel over all inputs, (G, R), in squared steps.

    Args:
        steps: Rounded weights (G, R, K), in steps of their channel's scale.
        weights: Weights (G, R, K) before rounding, in the same steps.
        hessian: Sum of the outer products of the inputs, (G, K, K), float64.
    """
    error = (steps - weights).double()
    return ((error @ hessian) * error).sum(2)


def compensated(weights: Tensor, nearest: Tensor, hessian: Tensor, largest: int) -> Tensor:
    """Return rounded weights whose outputs are at least as close as those of the nearest ones.

    Args:
        weights: Weights (G, R, K), in steps of their channel's scale.
        nearest: The same weights (G, R, K), rounded to nearest; whole numbers.
        hessian: Sum of the outer products of the inputs, (G, K, K), float64.
        largest: Largest step of a weight, at least 1.

    Returns:
        Whole numbers (G, R, K) from ``-largest`` to ``largest``. The squared error of no output
        channel over the inputs is larger than that of ``nearest``.
    """
    found = _gptq(weights.double(), hessian, largest).to(nearest.dtype)
    errors = (output_errors(each, weights, hessian) for each in (found, nearest))
    found_error, nearest_error = errors
    return torch.where((found_error < nearest_error)[..., None], found, nearest)


def _gptq(weights: Tensor, hessian: Tensor, largest: int) -> Tensor:
    """Round weights (G, R, K) in the order of their inputs' second moments; Algorithm 1."""
    order = hessian.diagonal(dim1=1, dim2=2).argsort(dim=1, descending=True)
    rows = order[:, None, :].expand_as(weights)
    left = weights.gather(2, rows)
    inverse = _inverse_factor(_permuted(hessian, order))
    rounded = torch.zeros_like(left)
    for column in range(left.shape[2]):
        value, factor = left[..., column], inverse[:, column]
        rounded[..., column] = value.round().clamp(-largest, largest)
        error = (value - rounded[..., column]) / factor[:, None, column]
        left[..., column + 1 :] -= error[..., None] * factor[:, None, column + 1 :]
    return torch.zeros_like(rounded).scatter_(2, rows, rounded)


def _permuted(hessian: Tensor, order: Tensor) -> Tensor:
    columns = order[:, None, :].expand_as(hessian)
    return hessian.gather(2, columns).gather(1, columns.transpose(1, 2))


def _inverse_factor(hessian: Tensor) -> Tensor:
    """Return the upper Cholesky factor (G, K, K) of the inverse of the damped Hessian."""
    factor: Tensor = torch.linalg.cholesky(damped_inverse(hessian), upper=True)
    return factor
