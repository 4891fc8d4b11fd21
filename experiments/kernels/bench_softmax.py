"""Benchmark of the softmax of rows against PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.softmax import softmax

__all__ = ["BENCHMARK"]


def eager(inputs: Inputs) -> Expression:
    """Return PyTorch's own kernels."""
    scale = inputs["scale"]

    def run(x: Tensor, mask: Tensor) -> Tensor:
        return torch.add(mask, x, alpha=scale).softmax(-1)

    return run, (inputs["x"], inputs["mask"])


BENCHMARK = Benchmark(
    softmax, (Rival("eager", "torch.add and torch.softmax", eager),), batches=(1, 8, 64)
)
