"""Benchmark of int8 convolution against float16: PyTorch has no int8 convolution on GPUs."""

from __future__ import annotations

from experiments.kernels.bench_convolution import layer
from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.int8_convolution import int8_convolution

__all__ = ["BENCHMARK"]


def in_float16(inputs: Inputs) -> Expression:
    """Return the layer without quantisation, which reads and writes twice the bytes."""
    run, tensors = layer({**inputs, "weight": inputs["weight"].permute(1, 2, 3, 0)})
    return run, tuple(each.half() / 64 for each in tensors)


BENCHMARK = Benchmark(
    int8_convolution,
    (
        Rival(
            "float16",
            "F.conv2d and F.hardswish in float16, channels-last, as PyTorch has no int8 "
            "convolution on cards",
            in_float16,
            same=False,
        ),
    ),
)
