"""Benchmark of slimmed attention with its layers against a linear layer and PyTorch's attention."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.slim_attention import slim_attention

__all__ = ["BENCHMARK"]


def layer_and_attention(inputs: Inputs) -> Expression:
    """Return one linear layer for queries, keys and values, and then attention."""
    heads, width = inputs["weight"].shape[2:]

    def run(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        layer = functional.linear(x, weight, *bias).unflatten(-1, (3, heads, width))
        query, key, value = layer.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value)
        return y.transpose(1, 2)

    weight = inputs["weight"].flatten(1).T.contiguous()
    bias = () if inputs["bias"] is None else (inputs["bias"].flatten(),)
    return run, (inputs["x"], weight, *bias)


BENCHMARK = Benchmark(
    slim_attention,
    (
        Rival(
            "eager",
            "one F.linear for queries, keys and values, F.scaled_dot_product_attention, its own "
            "choice",
            layer_and_attention,
        ),
    ),
)
