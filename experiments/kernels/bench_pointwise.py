"""Benchmark of pointwise against a 1 x 1 convolution of a channels-last map."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from experiments.kernels.layouts import nhwc, one_by_one, square
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.primitives.activations import ACTIVATIONS

__all__ = ["BENCHMARK"]


def convolution(inputs: Inputs) -> Expression:
    """Return the layer as PyTorch runs it in an eager network."""
    activate = ACTIVATIONS[inputs["activation"]]
    gate, residual = inputs["gate"], inputs["residual"]

    def run(x: Tensor, weight: Tensor, bias: Tensor, *rest: Tensor) -> Tensor:
        optional = list(rest)
        if gate is not None:
            x = x * optional.pop(0)
        y = activate(functional.conv2d(x, weight, bias))
        y = y + optional.pop(0) if residual is not None else y
        return nhwc(y).flatten(1, 2)

    rest = [] if gate is None else [gate[:, :, None, None]]
    rest += [] if residual is None else [square(residual)]
    weight = one_by_one(inputs["weight"])
    return run, (square(inputs["x"]), weight, inputs["bias"], *rest)


BENCHMARK = Benchmark(
    pointwise,
    (
        Rival(
            "eager",
            "F.conv2d 1x1, F.hardswish, channels-last, batch normalisation folded",
            convolution,
        ),
    ),
    batches=(1, 8, 64),
)
