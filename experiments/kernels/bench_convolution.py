"""Benchmark of dense convolution by implicit GEMM against cuDNN's, on a channels-last map."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from experiments.kernels.layouts import filters, nchw, nhwc
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.convolution import convolution
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK", "RIVAL"]


def layer(inputs: Inputs) -> Expression:
    """Return the layer as PyTorch runs it in an eager network."""
    activate, stride = ACTIVATIONS[inputs["activation"]], inputs["stride"]

    def run(x: Tensor, weight: Tensor, bias: Tensor, *residual: Tensor) -> Tensor:
        y = activate(functional.conv2d(x, weight, bias, stride, weight.shape[2] // 2))
        return nhwc(y + residual[0] if residual else y)

    residual = () if inputs["residual"] is None else (nchw(inputs["residual"]),)
    return run, (nchw(inputs["x"]), filters(inputs["weight"]), inputs["bias"], *residual)


RIVAL = Rival("eager", "F.conv2d, F.hardswish, channels-last, batch normalisation folded", layer)
BENCHMARK = Benchmark(convolution, (RIVAL,), batches=(1, 8, 64))
