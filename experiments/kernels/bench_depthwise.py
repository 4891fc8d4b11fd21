"""Benchmark of depthwise against a grouped convolution of a channels-last map."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from experiments.kernels.layouts import depthwise_filters, nchw, nhwc
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.depthwise import depthwise
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def convolution(inputs: Inputs) -> Expression:
    """Return the layer as PyTorch runs it in an eager network; sums are taken of its output."""
    activate, stride, sums = ACTIVATIONS[inputs["activation"]], inputs["stride"], inputs["sums"]

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        padding = weight.shape[2] // 2
        y = activate(functional.conv2d(x, weight, bias, stride, padding, groups=len(weight)))
        none = y.new_empty(len(y), 0, dtype=torch.float32)
        return nhwc(y), y.sum((2, 3), dtype=torch.float32) if sums else none

    return run, (nchw(inputs["x"]), depthwise_filters(inputs["weight"]), inputs["bias"])


BENCHMARK = Benchmark(
    depthwise,
    (
        Rival(
            "eager",
            "F.conv2d with groups, F.hardswish, sums over pixels where they are wanted, "
            "channels-last, batch normalisation folded",
            convolution,
        ),
    ),
    batches=(1, 8, 64),
)
