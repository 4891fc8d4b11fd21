"""Benchmark of int8 pointwise against PyTorch's int8 matrix product, and against float16."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from experiments.kernels.benchmark import Benchmark, Expression, Rival
from hwnas.kernels.operator import Inputs
from hwnas.kernels.operators.int8_pointwise import int8_pointwise
from hwnas.kernels.primitives.activations import ACTIVATIONS
from hwnas.kernels.primitives.requantisation import requantise

__all__ = ["BENCHMARK"]

_EPILOGUE = ("y_scale", "y_zero", "residual_scale", "residual_zero", "activation")
_EPILOGUE += ("table", "table_zero")


def product(inputs: Inputs) -> Expression:
    """Return the integer layer: ``torch._int_mm``, then requantisation to int8."""
    residual = inputs["residual"]
    scales = {name: inputs[name] for name in _EPILOGUE}

    def run(x: Tensor, weight: Tensor, bias: Tensor, multiplier: Tensor) -> Tensor:
        total = torch._int_mm(x, weight) + bias
        return requantise(total, multiplier, residual=residual, **scales)

    return run, (inputs["x"], inputs["weight"].T, inputs["bias"], inputs["multiplier"])


def in_float16(inputs: Inputs) -> Expression:
    """Return the layer without quantisation, which reads and writes twice the bytes."""
    activate = ACTIVATIONS[inputs["activation"]]

    def run(x: Tensor, weight: Tensor, bias: Tensor, *residual: Tensor) -> Tensor:
        y = activate(functional.linear(x, weight, bias))
        return y + residual[0] if residual else y

    names = ("x", "weight", "bias", "residual")
    tensors = [inputs[name] for name in names if inputs[name] is not None]
    return run, tuple(each.half() / 64 for each in tensors)


BENCHMARK = Benchmark(
    int8_pointwise,
    (
        Rival("eager", "torch._int_mm, requantised by element-wise operations", product),
        Rival("float16", "F.linear and F.hardswish in float16", in_float16, same=False),
    ),
)
