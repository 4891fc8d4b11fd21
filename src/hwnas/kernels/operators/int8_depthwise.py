"""Depthwise k x k convolution from int8 to int8, requantised in the same kernel.

y = requantise(x * W + b), see `hwnas.kernels.primitives.requantisation`; each channel is convolved
with a window of its own, and a map is padded with its zero point. Sums are exact, in int32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor
from torch.nn import functional

from hwnas.kernels.accelerator import WARP, Accelerator
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
from hwnas.kernels.primitives.tiles import alignment, powers
from hwnas.kernels.primitives.windows import STRIDES, corners, map_sides, out_map, out_shape
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Int8Depthwise", "int8_depthwise"]


@triton.jit
def int8_depthwise_kernel(
    x,  # (images, height, width, C)
    weight,  # (KERNEL, KERNEL, C)
    bias,  # (C,)
    multiplier,  # (C,)
    residual,  # (M, C) or None
    table,  # (256,) or None
    y,  # (M, C)
    M,  # number of windows
    C,
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
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN_C: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute BLOCK_C channels of BLOCK_M windows in each program."""
    C = C // ALIGN_C * ALIGN_C
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_rows, in_columns = rows < M, columns < C
    image, top, left = corners(rows, out_height, out_width, STRIDE, KERNEL)
    corner = ((image * height + top) * width + left) * C
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.int32)
    # Loads of all taps are in flight at once, but for 49 taps there are too few registers.
    for down in tl.range(0, KERNEL, loop_unroll_factor=KERNEL if KERNEL < 7 else 1):
        in_height = in_rows & (top + down >= 0) & (top + down < height)
        for along in tl.static_range(KERNEL):
            inside = in_height & (left + along >= 0) & (left + along < width)
            a = tl.load(
                x + (corner + (down * width + along) * C)[:, None] + columns[None, :],
                mask=inside[:, None] & in_columns[None, :],
                other=x_zero,
            )
            places = weight + (down * KERNEL + along) * C + columns[None, :]
            if ALIGN_C >= 8:
                # A thread has so many channels that it has few windows. It loads its weights
                # itself, which costs less than an exchange between threads.
                places = tl.broadcast_to(places, (BLOCK_M, BLOCK_C))
            b = tl.load(places, mask=in_columns[None, :], other=0)
            total += a.to(tl.int32) * b.to(tl.int32)
    store_requantised(
        total,
        bias,
        multiplier,
        residual,
        table,
        y,
        rows[:, None] * C + columns[None, :],
        in_rows[:, None] & in_columns[None, :],
        columns[None, :],
        in_columns[None, :],
        y_scale,
        y_zero,
        residual_step,
        residual_zero,
        table_zero,
        ACTIVATION,
    )


class Int8Depthwise(RequantisingOperator):
    """Depthwise convolution of int8 values.

    Bytes: x, W, b, multiplier, residual and y, once each. Tolerance: one step.
    """

    name = "int8_depthwise"
    checked = (
        {"images": 1, "height": 7, "width": 5, "channels": 23}
        | {"kernel": 3, "stride": 1, "residual": 0, "table": 1},
        {"images": 2, "height": 4, "width": 9, "channels": 40}
        | {"kernel": 5, "stride": 2, "residual": 1, "table": 0},
        {"images": 1, "height": 1, "width": 3, "channels": 1}
        | {"kernel": 3, "stride": 2, "residual": 1, "table": 1},
    )
    measured = (
        {"images": 1, "height": 56, "width": 56, "channels": 96}
        | {"kernel": 5, "stride": 1, "residual": 0, "table": 0},
        {"images": 1, "height": 14, "width": 14, "channels": 480}
        | {"kernel": 3, "stride": 1, "residual": 0, "table": 0},
        {"images": 1, "height": 7, "width": 7, "channels": 960}
        | {"kernel": 5, "stride": 1, "residual": 0, "table": 0},
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
            weight: Weight, (k, k, C) in int8; k is odd.
            bias: Bias, (C,) in int32, less the zero point of x times the sum of a channel's
                weights.
            multiplier: Multiplier, (C,) in float32: x_scale * weight_scale / y_scale.
            x_zero: Zero point of x, from -128 to 127, which pads the map.
            y_scale: Scale of the output, above 0.
            y_zero: Zero point of the output, from -128 to 127.
            residual: Residual, (N, H', W', C) in int8, added after the activation or the table.
            residual_scale: Scale of the residual, above 0.
            residual_zero: Zero point of the residual, from -128 to 127.
            stride: Stride, 1 or 2.
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`, for the value in
                real units.
            table: Lookup table, (256,) in float32, instead of an activation.
            table_zero: Zero point of the steps that index the table, from -128 to 127.

        Returns:
            Output y, (N, H', W', C) in int8; H' and W' are half of H and W, rounded up, for a
            stride of 2.
        """
        side = len(weight)
        _, height, width, _ = x.shape
        padded = functional.pad(x, (0, 0, *(side // 2,) * 4), value=x_zero)
        total = bias
        for down in range(side):
            rows = padded[:, down : down + height : stride].int()
            for along in range(side):
                total = total + rows[:, :, along : along + width : stride] * weight[down, along]
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
        )

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return images, height, width, channels, k, stride, and residual and table (0 or 1)."""
        x, weight, residual, stride = (
            inputs[name] for name in ("x", "weight", "residual", "stride")
        )
        fits = (
            x.dim() == 4
            and weight.dim() == 3
            and weight.shape[0] == weight.shape[1]
            and weight.shape[0] % 2 == 1
            and weight.shape[2] == x.shape[3]
            and inputs["bias"].shape == inputs["multiplier"].shape == weight.shape[2:]
            and stride in STRIDES
            and (residual is None or residual.shape == out_shape(x, stride, x.shape[3]))
        )
        takes = (
            "x (N, H, W, C), weight (k, k, C) with an odd k, bias and multiplier (C,), a residual "
            "of the output's shape and stride 1 or 2"
        )
        check_shapes(self.name, takes, fits, inputs, "stride")
        check_requantisation(self.name, inputs)
        names = ("images", "height", "width", "channels")
        return {
            **dict(zip(names, x.shape, strict=True)),
            "kernel": len(weight),
            "stride": stride,
            "residual": int(residual is not None),
            "table": int(inputs["table"] is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return uniform int8 values; the activation is ``hard_swish`` if there is no table."""
        steps = RandomValues(dtype, generator, device).steps
        channels, side = sizes["channels"], sizes["kernel"]
        x = steps(sizes["images"], sizes["height"], sizes["width"], channels)
        shape = out_shape(x, sizes["stride"], channels)
        return {
            "x": x,
            "weight": steps(side, side, channels),
            "x_zero": 11,
            "stride": sizes["stride"],
            **example_requantisation(shape, side**2, sizes, generator, device),
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x = inputs["x"]
        return (x.new_empty(out_shape(x, inputs["stride"], x.shape[3])),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        x, (y,) = inputs["x"], outputs
        channels, rows = x.shape[3], y.shape[:-1].numel()
        return [
            Launch(
                int8_depthwise_kernel,
                (triton.cdiv(rows, config["BLOCK_M"]), triton.cdiv(channels, config["BLOCK_C"])),
                {name: inputs[name] for name in ("x", "weight", "x_zero")}
                | {"y": y, "M": rows, "C": channels, **map_sides(x, y)}
                | requantised_arguments(inputs),
                {"KERNEL": len(inputs["weight"]), "STRIDE": inputs["stride"]}
                | {"ALIGN_C": alignment(channels), "ACTIVATION": inputs["activation"]}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_C")},
                config["num_warps"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return blocks of windows and channels with 4 to 32 sums a thread."""
        widest = max(16, triton.next_power_of_2(sizes["channels"]))
        return Problem(
            {
                "BLOCK_M": powers(1, 64),
                "BLOCK_C": powers(16, min(256, widest)),
                "num_warps": (1, 2, 4, 8),
            },
            (
                Constraint(
                    lambda BLOCK_M, BLOCK_C, num_warps: (
                        4 <= BLOCK_M * BLOCK_C // (num_warps * WARP) <= 32
                    ),
                    "a thread has fewer than 4 sums or more than 32",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return eight sums a thread, in blocks of channels that waste the fewest lanes.

        With more than 16 channels a block consists of whole sectors of 32 bytes.
        """
        channels = sizes["channels"]
        block = min((64, 32), key=lambda size: triton.cdiv(channels, size) * size)
        block = 16 if channels <= 16 else block
        few = math.prod(out_map(sizes)) * channels < 2**18
        return {
            "BLOCK_M": (256 if few else 1024) // block,
            "BLOCK_C": block,
            "num_warps": 1 if few else 4,
        }

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work; bias and multiplier take four bytes each."""
        rows, taps = math.prod(out_map(sizes)), sizes["kernel"] ** 2
        read = sizes["images"] * sizes["height"] * sizes["width"] + taps + 8
        moved = read + rows * (1 + sizes["residual"])
        return OperatorWork(moved * sizes["channels"], rows * taps * sizes["channels"])


int8_depthwise = Int8Depthwise()


PLUGINS = (
    Plugin("operator", "int8_depthwise", int8_depthwise, "Depthwise convolution from int8 to int8"),
)
