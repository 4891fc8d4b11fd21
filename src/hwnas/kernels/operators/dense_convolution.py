"""Base class of the operators that compute a dense k x k convolution.

k is odd and a map is padded by k // 2 on each side, so that a stride of 1 keeps its size.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.activations import activated
from hwnas.kernels.primitives.tiles import (
    product_default,
    product_macs,
    product_problem,
    product_reads,
)
from hwnas.kernels.primitives.windows import STRIDES, out_shape, window_product
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Problem

__all__ = ["DenseConvolution"]


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    stride: int = 1,
    activation: str = "none",
    residual_first: bool = False,
) -> Tensor:
    """Compute activation(x * W + b) + residual, where * is a convolution.

    Args:
        x: Feature maps, (N, H, W, C).
        weight: Weight, (k, k, C, O), rows of a window first; k is odd.
        bias: Bias, (O,).
        residual: Residual, (N, H', W', O).
        stride: Stride, 1 or 2.
        activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`.
        residual_first: Whether the residual is added before the activation, not after it.

    Returns:
        Output y, (N, H', W', O), in the type of x; H' and W' are half of H and W, rounded up, for a
        stride of 2.
    """
    images, filters = x.permute(0, 3, 1, 2), weight.permute(3, 2, 0, 1)
    y = functional.conv2d(images, filters, bias, stride, len(weight) // 2).permute(0, 2, 3, 1)
    return activated(y, residual, activation, residual_first).contiguous()


class DenseConvolution(Operator):
    """Dense k x k convolution; a subclass says how it is computed."""

    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"images": 1, "height": 7, "width": 5, "inputs": 3, "outputs": 17}
        | {"kernel": 3, "stride": 2, "residual": 0},
        {"images": 2, "height": 4, "width": 5, "inputs": 16, "outputs": 24}
        | {"kernel": 3, "stride": 1, "residual": 1},
        {"images": 1, "height": 1, "width": 6, "inputs": 5, "outputs": 1}
        | {"kernel": 5, "stride": 2, "residual": 1},
    )
    measured = (
        {"images": 1, "height": 224, "width": 224, "inputs": 3, "outputs": 16}
        | {"kernel": 3, "stride": 2, "residual": 0},
        {"images": 1, "height": 56, "width": 56, "inputs": 32, "outputs": 128}
        | {"kernel": 3, "stride": 1, "residual": 0},
        {"images": 1, "height": 14, "width": 14, "inputs": 128, "outputs": 256}
        | {"kernel": 3, "stride": 2, "residual": 0},
    )
    reference = staticmethod(convolve)

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return images, height, width, channels in and out, k, stride and residual (0 or 1)."""
        x, weight, residual, stride = (
            inputs[name] for name in ("x", "weight", "residual", "stride")
        )
        fits = (
            x.dim() == weight.dim() == 4
            and weight.shape[0] == weight.shape[1]
            and weight.shape[0] % 2 == 1
            and weight.shape[2] == x.shape[3]
            and inputs["bias"].shape == weight.shape[3:]
            and stride in STRIDES
            and (residual is None or residual.shape == out_shape(x, stride, weight.shape[3]))
        )
        takes = (
            "x (N, H, W, C), weight (k, k, C, O) with an odd k, bias (O,), a residual of the "
            "output's shape and stride 1 or 2"
        )
        check_shapes(self.name, takes, fits, inputs, "stride")
        names = ("images", "height", "width", "inputs")
        return {
            **dict(zip(names, x.shape, strict=True)),
            "outputs": weight.shape[3],
            "kernel": len(weight),
            "stride": stride,
            "residual": int(residual is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values; the activation is ``hard_swish``."""
        normal = RandomValues(dtype, generator, device).normal
        images, height, width = sizes["images"], sizes["height"], sizes["width"]
        side, inner, outer = sizes["kernel"], sizes["inputs"], sizes["outputs"]
        x, stride = normal(images, height, width, inner), sizes["stride"]
        return {
            "x": x,
            "weight": normal(side, side, inner, outer, scale=(side**2 * inner) ** -0.5),
            "bias": normal(outer),
            "residual": normal(*out_shape(x, stride, outer)) if sizes["residual"] else None,
            "stride": stride,
            "activation": "hard_swish",
            "residual_first": False,
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x, outer = inputs["x"], inputs["weight"].shape[3]
        return (x.new_empty(out_shape(x, inputs["stride"], outer)),)

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem of the convolution's matrix product."""
        return product_problem(*window_product(sizes), dtype, gpu)

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return the default of the matrix product, with steps that cross no pixel's edge.

        If the largest power of two that divides the channels is below 32, steps of up to 32 may
        cross one.
        """
        channels = sizes["inputs"]
        deepest = max(32, channels & -channels)
        return product_default(*window_product(sizes), dtype, deepest)

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of one product, without intermediate results in memory."""
        rows, outer, inner = window_product(sizes)
        values = sizes["images"] * sizes["height"] * sizes["width"] * sizes["inputs"]
        values += inner * outer + outer + rows * outer * (1 + sizes["residual"])
        return OperatorWork(values * dtype.itemsize, rows * inner * outer)

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes of the windows and weights that each program reads, and of y."""
        rows, outer, inner = window_product(sizes)
        values = product_reads(rows, outer, inner, config) + rows * outer * (1 + sizes["residual"])
        return dtype.itemsize * values

    def products(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the multiplications of whole blocks."""
        return product_macs(*window_product(sizes), config)
