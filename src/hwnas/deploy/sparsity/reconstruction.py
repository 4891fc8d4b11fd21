"""Least-squares fit of the remaining weights of a pruned layer to its outputs before pruning."""

from __future__ import annotations

import torch
from torch import Tensor

from hwnas.deploy.sparsity.hessian import InputHessian

__all__ = ["reconstructed"]

_STEPS = 40
_ACCURATE = 1e-8  # squared residual, relative to the first


@torch.no_grad()
def reconstructed(dense: Tensor, start: Tensor, mask: Tensor, hessian: InputHessian) -> Tensor:
    """Return the weights under a mask that change the outputs least.

    The rows are least-squares problems with one matrix, restricted to the weights that stay. They
    are solved together by conjugate gradients, preconditioned by the diagonal, whose error falls in
    every step. So the result is never worse than the start, however few steps are done.

    Args:
        dense: Weights before pruning, (outputs, inputs).
        start: Weights to start from, same shape; those outside of the mask count as zero.
        mask: Mask of the weights that stay, bool.
        hessian: Moments of the inputs.
    """
    moments = hessian.moments
    kept = mask.to(moments)
    scale = kept / moments.diagonal().clamp_min(torch.finfo(moments.dtype).tiny ** 0.5)
    weights = start.to(moments) * kept
    residual = ((dense.to(moments) - weights) @ moments) * kept
    direction = scaled = scale * residual
    size = _rows(residual, scaled)
    first = size.clamp_min(torch.finfo(moments.dtype).tiny)
    for _ in range(_STEPS):
        product = (direction @ moments) * kept
        step = _ratio(size, _rows(direction, product))
        weights += step * direction
        residual -= step * product
        scaled = scale * residual
        before, size = size, _rows(residual, scaled)
        if bool((size <= _ACCURATE * first).all()):
            break
        direction = scaled + _ratio(size, before) * direction
    return weights.to(dense.dtype)


def _rows(first: Tensor, second: Tensor) -> Tensor:
    """Return the scalar product of each row, (outputs, 1)."""
    return (first * second).sum(1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return a quotient; 0 for rows that are solved already."""
    return torch.where(below > 0, above / below.where(below > 0, torch.ones_like(below)), 0.0)
