"""Dense k x k convolution from int8 to int8 by implicit GEMM, requantised in the same kernel.

y = requantise(x * W + b), see `hwnas.kernels.primitives.requantisation`; a map is padded with its
zero point. Windows are gathered while they are multiplied; the product is exact, in int32, on
tensor cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor
from torch.nn import functional

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config, Inputs, OperatorWork, Sizes
from hwnas.kernels.primitives.requantisation import (
    RequantisingOperator,
    check_requantisation,
    example_requantisation,
    requantise,
    requantised_arguments,
    store_requantised,
)
from hwnas.kernels.primitives.tiles import (
    alignment,
    int8_product_default,
    product_blocks,
    product_problem,
)
from hwnas.kernels.primitives.windows import (
    STRIDES,
    corners,
    load_windows,
    map_sides,
    out_shape,
    window_product,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Int8Convolution", "int8_convolution"]


@triton.jit
def int8_convolution_kernel(
    x,  # (images, height, width, C)
    weight,  # (N, KERNEL * KERNEL * C)
    bias,  # (N,)
    multiplier,  # (N,)
    residual,  # (M, N) or None
    table,  # (256,) or None
    y,  # (M, N)
    M,  # number of windows
    N,
    height,
    width,
    out_height,
    out_width,
    x_zero,
    y_scale,
    y_zero,
    residual_step,
    residual_zero,
    table_zero,
    C: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN_N: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_N channels of BLOCK_M windows in each program."""
    N = N // ALIGN_N * ALIGN_N
    K: tl.constexpr = KERNEL * KERNEL * C
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows, in_columns = rows[:, None] < M, columns[None, :] < N
    image, top, left = corners(rows, out_height, out_width, STRIDE, KERNEL)
    corner = ((image * height + top) * width + left) * C
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for start in range(0, K, BLOCK_K):
        a = load_windows(
            x, corner, top, left, in_rows, start, height, width, x_zero, C, KERNEL, BLOCK_K
        )
        inner = start + tl.arange(0, BLOCK_K)
        b = tl.load(
            weight + columns[None, :] * K + inner[:, None],
            mask=(inner[:, None] < K) & in_columns,
            other=0,
        )
        total = tl.dot(a, b, total, out_dtype=tl.int32)
    store_requantised(
        total,
        bias,
        multiplier,
        residual,
        table,
        y,
        rows[:, None] * N + columns[None, :],
        in_rows & in_columns,
        columns[None, :],
        in_columns,
        y_scale,
        y_zero,
        residual_step,
        residual_zero,
        table_zero,
        ACTIVATION,
    )


class Int8Convolution(RequantisingOperator):
    """Dense convolution of int8 values.

    Bytes: x, W, b, multiplier, residual and y, once each. Tolerance: one step.

    The weights of an output channel are contiguous, because tensor cores read int8 values only
    along the sum.
    """

    name = "int8_convolution"
    checked = (
        {"images": 1, "height": 7, "width": 5, "inputs": 3, "outputs": 17}
        | {"kernel": 3, "stride": 2, "residual": 0, "table": 1},
        {"images": 2, "height": 4, "width": 5, "inputs": 16, "outputs": 24}
        | {"kernel": 3, "stride": 1, "residual": 1, "table": 0},
        {"images": 1, "height": 1, "width": 6, "inputs": 5, "outputs": 1}
        | {"kernel": 5, "stride": 2, "residual": 1, "table": 1},
    )
    measured = (
        {"images": 1, "height": 224, "width": 224, "inputs": 3, "outputs": 16}
        | {"kernel": 3, "stride": 2, "residual": 0, "table": 0},
        {"images": 1, "height": 56, "width": 56, "inputs": 32, "outputs": 128}
        | {"kernel": 3, "stride": 1, "residual": 0, "table": 0},
        {"images": 1, "height": 14, "width": 14, "inputs": 128, "outputs": 256}
        | {"kernel": 3, "stride": 2, "residual": 0, "table": 0},
    )

    @staticmethod
    def reference(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        multiplier: Tensor,
        x_zero: int,
        y_scale: float,
        y_zero: int,
        residual: Tensor | None = None,
        residual_scale: float = 1.0,
        residual_zero: int = 0,
        stride: int = 1,
        activation: str = "none",
        table: Tensor | None = None,
        table_zero: int = 0,
    ) -> Tensor:
        """Compute the module's formula in PyTorch.

        `hwnas.kernels.primitives.requantisation.folded` returns ``bias`` and ``multiplier``.

        Args:
            x: Feature maps, (N, H, W, C) in int8.
            weight: Weight, (O, k, k, C) in int8, rows of a window first; k is odd.
            bias: Bias, (O,) in int32, less the zero point of x times the sum of a channel's
                weights.
            multiplier: Multiplier, (O,) in float32: x_scale * weight_scale / y_scale.
            x_zero: Zero point of x, from -128 to 127, which pads the map.
            y_scale: Scale of the output, above 0.
            y_zero: Zero point of the output, from -128 to 127.
            residual: Residual, (N, H', W', O) in int8, added after the activation or the table.
            residual_scale: Scale of the residual, above 0.
            residual_zero: Zero point of the residual, from -128 to 127.
            stride: Stride, 1 or 2.
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`, for the value in
                real units.
            table: Lookup table, (256,) in float32, instead of an activation.
            table_zero: Zero point of the steps that index the table, from -128 to 127.

        Returns:
            Output y, (N, H', W', O) in int8; H' and W' are half of H and W, rounded up, for a
            stride of 2.
        """
        padded = functional.pad(x, (0, 0, *(weight.shape[1] // 2,) * 4), value=x_zero)
        # Exact: integers below 2^53. PyTorch convolves no integers on a GPU.
        images, filters = (each.permute(0, 3, 1, 2).double() for each in (padded, weight))
        total = functional.conv2d(images, filters, bias.double(), stride).permute(0, 2, 3, 1)
        return requantise(
            total,
            multiplier,
            y_scale,
            y_zero,
            residual,
            residual_scale,
            residual_zero,
            activation,
            table,
            table_zero,
        ).contiguous()

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the sizes of map, channels, k and stride, and residual and table (0 or 1)."""
        x, weight, residual, stride = (
            inputs[name] for name in ("x", "weight", "residual", "stride")
        )
        fits = (
            x.dim() == weight.dim() == 4
            and weight.shape[1] == weight.shape[2]
            and weight.shape[1] % 2 == 1
            and weight.shape[3] == x.shape[3]
            and inputs["bias"].shape == inputs["multiplier"].shape == weight.shape[:1]
            and stride in STRIDES
            and (residual is None or residual.shape == out_shape(x, stride, len(weight)))
        )
        takes = (
            "x (N, H, W, C), weight (O, k, k, C) with an odd k, bias and multiplier (O,), a "
            "residual of the output's shape and stride 1 or 2"
        )
        check_shapes(self.name, takes, fits, inputs, "stride")
        check_requantisation(self.name, inputs)
        names = ("images", "height", "width", "inputs")
        return {
            **dict(zip(names, x.shape, strict=True)),
            "outputs": len(weight),
            "kernel": weight.shape[1],
            "stride": stride,
            "residual": int(residual is not None),
            "table": int(inputs["table"] is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return uniform int8 values; the activation is ``hard_swish`` if there is no table."""
        steps = RandomValues(dtype, generator, device).steps
        inner, outer, side = sizes["inputs"], sizes["outputs"], sizes["kernel"]
        x = steps(sizes["images"], sizes["height"], sizes["width"], inner)
        shape = out_shape(x, sizes["stride"], outer)
        return {
            "x": x,
            "weight": steps(outer, side, side, inner),
            "x_zero": 11,
            "stride": sizes["stride"],
            **example_requantisation(shape, side**2 * inner, sizes, generator, device),
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x, outer = inputs["x"], len(inputs["weight"])
        return (x.new_empty(out_shape(x, inputs["stride"], outer)),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        x, weight, (y,) = inputs["x"], inputs["weight"], outputs
        inner, outer, rows = x.shape[3], y.shape[3], y.shape[:-1].numel()
        return [
            Launch(
                int8_convolution_kernel,
                product_blocks(rows, outer, config),
                {name: inputs[name] for name in ("x", "weight", "x_zero")}
                | {"y": y, "M": rows, "N": outer, **map_sides(x, y)}
                | requantised_arguments(inputs),
                {"C": inner, "KERNEL": weight.shape[1], "STRIDE": inputs["stride"]}
                | {"ALIGN_N": alignment(outer), "ACTIVATION": inputs["activation"]}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem of the convolution's matrix product."""
        return product_problem(*window_product(sizes), dtype, gpu)

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return the default of the matrix product, with steps that cross no pixel's edge.

        If the largest power of two that divides the channels is below 32, steps of 32 may cross
        one.
        """
        channels = sizes["inputs"]
        return int8_product_default(*window_product(sizes), channels & -channels)

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of one product; bias and multiplier take four bytes each."""
        rows, outer, inner = window_product(sizes)
        moved = sizes["images"] * sizes["height"] * sizes["width"] * sizes["inputs"]
        moved += inner * outer + 8 * outer + rows * outer * (1 + sizes["residual"])
        return OperatorWork(moved, rows * inner * outer)


int8_convolution = Int8Convolution()


PLUGINS = (
    Plugin("operator", "int8_convolution", int8_convolution, "Dense convolution from int8 to int8"),
)
