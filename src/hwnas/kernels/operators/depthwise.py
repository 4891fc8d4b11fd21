"""Depthwise convolution with activation, and optional sums over pixels for a squeeze-excite.

y = activation(sum of x * weight over a window + b), where batch normalisation is folded into weight
and b. If the sums of y over all pixels are requested, the same kernel computes them before y is
rounded, so that a squeeze-excite need not read y again for its means.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.activations import ACTIVATIONS, activate
from hwnas.kernels.primitives.tiles import least_idle, power_block, powers
from hwnas.kernels.primitives.windows import (
    add_window,
    check_stride,
    check_windows,
    convolve,
    out_map,
    out_shape,
    window_registers,
    window_warps,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Depthwise", "depthwise"]


@triton.jit
def depthwise_kernel(
    x,  # (N, H, W, C)
    weight,  # (k, k, C)
    bias,  # (C,)
    y,  # (N, H', W', C)
    sums,  # (N, tiles, C), float32, or None
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute BLOCK_C channels of a tile, BLOCK_P pixels of one image, in each program."""
    OUT_WIDTH: tl.constexpr = (WIDTH - 1) // STRIDE + 1
    OUT_PIXELS: tl.constexpr = ((HEIGHT - 1) // STRIDE + 1) * OUT_WIDTH
    image = tl.program_id(2)
    pixels = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    in_image, known = pixels < OUT_PIXELS, channels < CHANNELS
    total = add_window(
        tl.zeros((BLOCK_P, BLOCK_C), tl.float32),
        x + image * (HEIGHT * WIDTH * CHANNELS) + channels,
        weight + channels,
        tl.where(in_image, pixels // OUT_WIDTH * STRIDE - KERNEL // 2, HEIGHT),
        pixels % OUT_WIDTH * STRIDE - KERNEL // 2,
        known,
        HEIGHT,
        WIDTH,
        CHANNELS,
        CHANNELS,
        KERNEL,
    )
    total = activate(
        total + tl.load(bias + channels, mask=known, other=0.0).to(tl.float32), ACTIVATION
    )
    place = (image * OUT_PIXELS + pixels) * CHANNELS + channels
    tl.store(y + place, total.to(y.dtype.element_ty), mask=in_image & known)
    if sums is not None:
        part = tl.sum(tl.where(in_image, total, 0.0), 0)
        columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
        line = image * tl.num_programs(0) + tl.program_id(0)
        tl.store(sums + line * CHANNELS + columns, part, mask=columns < CHANNELS)


@triton.jit
def add_tiles_kernel(
    parts,  # (N, tiles, C), float32
    sums,  # (N, C), float32
    tiles,
    CHANNELS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add up BLOCK_C channels of an image in each program, always in the same order."""
    image = tl.program_id(1)
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    for start in range(0, tiles, BLOCK_T):
        lines = start + tl.arange(0, BLOCK_T)[:, None]
        total += tl.load(
            parts + (image * tiles + lines) * CHANNELS + channels[None, :],
            mask=(lines < tiles) & (channels[None, :] < CHANNELS),
            other=0.0,
        )
    tl.store(sums + image * CHANNELS + channels, tl.sum(total, 0), mask=channels < CHANNELS)


class Depthwise(Operator):
    """Depthwise convolution with activation and optional sums over pixels.

    Bytes: x, weight, b, y and the sums, once each. Tolerance: that of float32 sums.

    The sums are (N, C) in every configuration. If one tile is a whole image, its program writes
    them; otherwise a second small kernel adds those of the tiles.
    """

    name = "depthwise"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"images": 2, "height": 5, "width": 4, "channels": 19}
        | {"kernel": 3, "stride": 1, "sums": 1},
        {"images": 1, "height": 9, "width": 6, "channels": 40}
        | {"kernel": 5, "stride": 2, "sums": 0},
        {"images": 1, "height": 3, "width": 2, "channels": 13}
        | {"kernel": 7, "stride": 1, "sums": 1},
    )
    measured = (
        {"images": 1, "height": 56, "width": 56, "channels": 96}
        | {"kernel": 5, "stride": 1, "sums": 0},
        {"images": 1, "height": 14, "width": 14, "channels": 480}
        | {"kernel": 3, "stride": 1, "sums": 1},
        {"images": 1, "height": 7, "width": 7, "channels": 960}
        | {"kernel": 5, "stride": 1, "sums": 1},
    )

    @staticmethod
    def reference(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        stride: int = 1,
        activation: str = "none",
        sums: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute the module's formula in PyTorch.

        Args:
            x: Feature maps, (N, H, W, C).
            weight: Weight, (k, k, C), k odd and at most 11; the map is padded by k // 2.
            bias: Bias, (C,).
            stride: Stride, 1 or 2.
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`.
            sums: Whether the sums of y are requested.

        Returns:
            Output y, (N, H / stride, W / stride, C), rounded up, in the type of x; and its sums
            over pixels, (N, C) in float32, or (N, 0) if they are not requested.
        """
        y = ACTIVATIONS[activation](convolve(x, weight, bias, stride))
        wide = torch.promote_types(y.dtype, torch.float32)
        return y, y.sum((1, 2), dtype=wide) if sums else x.new_empty(len(x), 0, dtype=wide)

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return images, height, width, channels, kernel size, stride and sums (0 or 1)."""
        check_stride(self.name, inputs["stride"])
        x, weight = inputs["x"], inputs["weight"]
        fits = (
            x.dim() == 4
            and weight.dim() == 3
            and weight.shape == (weight.shape[1], weight.shape[1], x.shape[3])
            and inputs["bias"].shape == x.shape[3:]
        )
        takes = "x (N, H, W, C), weight (k, k, C) and bias (C,)"
        check_shapes(self.name, takes, fits, inputs)
        check_windows(self.name, inputs)
        return dict(zip(("images", "height", "width", "channels"), x.shape, strict=True)) | {
            "kernel": weight.shape[0],
            "stride": inputs["stride"],
            "sums": int(inputs["sums"]),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values; the activation is ``hard_swish``."""
        normal = RandomValues(dtype, generator, device).normal
        kernel, channels = sizes["kernel"], sizes["channels"]
        return {
            "x": normal(sizes["images"], sizes["height"], sizes["width"], channels),
            "weight": normal(kernel, kernel, channels, scale=1 / kernel),
            "bias": normal(channels),
            "stride": sizes["stride"],
            "activation": "hard_swish",
            "sums": bool(sizes["sums"]),
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return empty tensors for y and its sums."""
        x: Tensor = inputs["x"]
        images, channels = x.shape[0], x.shape[3]
        return (
            x.new_empty(out_shape(x, inputs["stride"], channels)),
            x.new_empty(images, channels if inputs["sums"] else 0, dtype=torch.float32),
        )

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return one launch, and one more if there are sums of several tiles."""
        y, sums = outputs
        images, height, width, channels = inputs["x"].shape
        block_c, warps = config["BLOCK_C"], config["num_warps"]
        tiles = triton.cdiv(y.shape[1] * y.shape[2], config["BLOCK_P"])
        blocks = triton.cdiv(channels, block_c)
        parts = None
        if inputs["sums"]:
            parts = sums if tiles == 1 else sums.new_empty(images, tiles, channels)
        convolution = Launch(
            depthwise_kernel,
            (tiles, blocks, images),
            {name: inputs[name] for name in ("x", "weight", "bias")} | {"y": y, "sums": parts},
            {"HEIGHT": height, "WIDTH": width, "CHANNELS": channels}
            | {"KERNEL": inputs["weight"].shape[0], "STRIDE": inputs["stride"]}
            | {"ACTIVATION": inputs["activation"], "BLOCK_P": config["BLOCK_P"]}
            | {"BLOCK_C": block_c},
            warps,
        )
        if parts is None or parts is sums:
            return [convolution]
        return [
            convolution,
            Launch(
                add_tiles_kernel,
                (triton.cdiv(channels, 32), images),
                {"parts": parts, "sums": sums, "tiles": tiles},
                {"CHANNELS": channels, "BLOCK_T": 16, "BLOCK_C": 32},
                num_warps=4,
            ),
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return tiles that keep all threads busy and all values in registers."""
        _, height, width = out_map(sizes)
        return Problem(
            {
                "BLOCK_P": powers(1, min(128, triton.next_power_of_2(height * width))),
                "BLOCK_C": powers(16, power_block(sizes["channels"], 256)),
                "num_warps": (1, 2, 4, 8),
            },
            (
                Constraint(
                    lambda BLOCK_P, BLOCK_C, num_warps: (
                        num_warps <= 2 or BLOCK_P * BLOCK_C // (num_warps * WARP) >= 2
                    ),
                    "there are fewer than two values for each thread",
                ),
                Constraint(
                    lambda BLOCK_P, BLOCK_C, num_warps: (
                        window_registers(
                            BLOCK_P * BLOCK_C // (num_warps * WARP), sizes["kernel"], dtype
                        )
                        <= gpu.registers_per_thread // 2
                    ),
                    "sums and values loaded for them take more than half of a thread's registers",
                ),
                Constraint(
                    lambda BLOCK_C, num_warps: num_warps * WARP > BLOCK_C,
                    "weights of one window position are exchanged between threads, not loaded",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return small tiles if there are few of them."""
        images, height, width = out_map(sizes)
        pixels = height * width
        many = pixels >= 64 and images * pixels * sizes["channels"] >= 2**20
        block_c = least_idle(sizes["channels"], (64, 32, 16) if many else (32, 16))
        wanted = (1024 if many else 512) // block_c
        block_p = min(wanted, triton.next_power_of_2(pixels))
        warps = window_warps(block_p * block_c, sizes["channels"], sizes["kernel"], dtype)
        return {
            "BLOCK_P": block_p,
            "BLOCK_C": block_c,
            "num_warps": max(2, warps),
        }

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work, with padding counted as multiplied."""
        images, height, width = out_map(sizes)
        channels, window = sizes["channels"], sizes["kernel"] ** 2
        made = images * height * width * channels
        read = images * sizes["height"] * sizes["width"] * channels + (window + 1) * channels
        sums = sizes["sums"] * images * channels * 4
        return OperatorWork((read + made) * dtype.itemsize + sums, made * window)

    def products(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the multiplications of whole tiles."""
        images, height, width = out_map(sizes)
        tiles: int = triton.cdiv(height * width, config["BLOCK_P"])
        tiles *= triton.cdiv(sizes["channels"], config["BLOCK_C"])
        return images * tiles * config["BLOCK_P"] * config["BLOCK_C"] * sizes["kernel"] ** 2


depthwise = Depthwise()


PLUGINS = (Plugin("operator", "depthwise", depthwise, "Depthwise convolution with activation"),)
