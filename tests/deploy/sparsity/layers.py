"""Layers and inputs for the tests of sparsity."""

import torch
from torch import Tensor

from hwnas.deploy.sparsity.hessian import InputHessian

__all__ = ["correlated_inputs", "hessian_of"]


def correlated_inputs(samples: int, inputs: int, seed: int) -> Tensor:
    """Return nonnegative inputs that depend on each other, (samples, inputs) float64."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(samples, inputs, generator=generator, dtype=torch.float64)
    mixing = torch.randn(inputs, inputs, generator=generator, dtype=torch.float64)
    return (mixed @ mixing).relu()


def hessian_of(inputs: Tensor) -> InputHessian:
    """Return the moments of inputs (samples, K)."""
    return InputHessian(inputs.T @ inputs / len(inputs), 1.0)
