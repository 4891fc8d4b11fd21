"""Benchmark of fused depthwise and pointwise against two convolutions of a channels-last map."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from experiments.kernels.layouts import depthwise_filters, nchw, nhwc, one_by_one
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.depthwise_pointwise import depthwise_pointwise
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def convolutions(inputs: Inputs) -> Expression:
    """Return the two layers as PyTorch runs them in an eager network."""
    first, last = (ACTIVATIONS[inputs[name]] for name in ("activation", "project_activation"))
    stride = inputs["stride"]

    def run(
        x: Tensor, weight: Tensor, bias: Tensor, project: Tensor, shift: Tensor, *residual: Tensor
    ) -> Tensor:
        padding = weight.shape[2] // 2
        hidden = first(functional.conv2d(x, weight, bias, stride, padding, groups=len(weight)))
        y = last(functional.conv2d(hidden, project, shift))
        return nhwc(y + residual[0] if residual else y)

    residual = () if inputs["residual"] is None else (nchw(inputs["residual"]),)
    return run, (
        nchw(inputs["x"]),
        depthwise_filters(inputs["weight"]),
        inputs["bias"],
        one_by_one(inputs["project_weight"]),
        inputs["project_bias"],
        *residual,
    )


BENCHMARK = Benchmark(
    depthwise_pointwise,
    (
        Rival(
            "eager",
            "F.conv2d with groups, F.hardswish, F.conv2d 1x1, F.relu, channels-last, batch "
            "normalisations folded",
            convolutions,
        ),
    ),
)
