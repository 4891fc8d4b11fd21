"""Benchmark of block-sparse linear layers against the dense layer, whose weight has zeros there."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.block_sparse import block_sparse
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def dense(inputs: Inputs) -> Expression:
    """Return the dense layer, which also multiplies the zeros."""
    activate, blocks, bias = ACTIVATIONS[inputs["activation"]], inputs["blocks"], inputs["bias"]
    height, width = blocks.shape[1:]
    tall, strips = -(-inputs["inputs"] // height), len(inputs["ends"]) - 1
    weight = blocks.new_zeros(tall, strips, height, width)
    strip = torch.repeat_interleave(inputs["ends"].diff().long())
    weight[inputs["places"].long(), strip] = blocks
    weight = weight.transpose(1, 2).reshape(tall * height, strips * width)
    weight = weight[: inputs["inputs"], : len(bias)].T.contiguous()

    def run(x: Tensor, weight: Tensor, bias: Tensor, *residual: Tensor) -> Tensor:
        y = activate(functional.linear(x, weight, bias))
        return y + residual[0] if residual else y

    residual = () if inputs["residual"] is None else (inputs["residual"],)
    return run, (inputs["x"], weight, bias, *residual)


BENCHMARK = Benchmark(
    block_sparse,
    (Rival("eager", "F.linear of the dense weight with its zeros, F.hardswish", dense),),
)
