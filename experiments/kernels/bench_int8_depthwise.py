"""Benchmark of int8 depthwise against float16: PyTorch has no int8 convolution on GPUs."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from experiments.kernels.layouts import depthwise_filters, nchw, nhwc
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.int8_depthwise import int8_depthwise
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def in_float16(inputs: Inputs) -> Expression:
    """Return the layer without quantisation, which reads and writes twice the bytes."""
    activate, stride = ACTIVATIONS[inputs["activation"]], inputs["stride"]

    def run(x: Tensor, weight: Tensor, bias: Tensor, *residual: Tensor) -> Tensor:
        padding = weight.shape[2] // 2
        y = activate(functional.conv2d(x, weight, bias, stride, padding, groups=len(weight)))
        return nhwc(y + residual[0] if residual else y)

    residual = () if inputs["residual"] is None else (nchw(inputs["residual"]),)
    tensors = nchw(inputs["x"]), depthwise_filters(inputs["weight"]), inputs["bias"], *residual
    return run, tuple(each.half() / 64 for each in tensors)


BENCHMARK = Benchmark(
    int8_depthwise,
    (
        Rival(
            "float16",
            "F.conv2d with groups and F.hardswish in float16, channels-last, as PyTorch has no "
            "int8 convolution on cards",
            in_float16,
            same=False,
        ),
    ),
)
