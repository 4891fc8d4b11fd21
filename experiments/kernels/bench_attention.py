"""Benchmark of attention on short sequences against PyTorch's."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.attention import attention

__all__ = ["BENCHMARK"]


def scaled_dot_product(inputs: Inputs) -> Expression:
    """Return PyTorch's attention, which chooses among FlashAttention-2, cuDNN's and others."""

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = (x.transpose(1, 2) for x in (query, key, value))
        return functional.scaled_dot_product_attention(*heads).transpose(1, 2)

    return run, (inputs["query"], inputs["key"], inputs["value"])


BENCHMARK = Benchmark(
    attention,
    (Rival("eager", "F.scaled_dot_product_attention, its own choice", scaled_dot_product),),
    batches=(1, 8, 64),
)
