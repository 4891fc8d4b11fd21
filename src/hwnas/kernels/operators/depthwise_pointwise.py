"""Depthwise convolution and the pointwise one after it, in one kernel.

y = project_activation(activation(window sums of x + b) W + project_bias) + residual, where batch
normalisations are folded into weights. The output of the depthwise convolution is computed in
registers, a few channels at a time, and multiplied there: it is never written (as in FCM, Qararyah
et al., "Fusing Depthwise and Pointwise Convolutions for Efficient Inference on GPUs", ICPP 2024).

It is fast if one block holds all output channels, about 256 at most, because each further block
computes the depthwise convolution again. It also needs pixels for many programs, because a program
iterates over blocks of channels: two operators are better for 7 x 7 x 960 at batch 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.activations import ACTIVATIONS, activate
from hwnas.kernels.primitives.tiles import power_block, powers
from hwnas.kernels.primitives.windows import (
    UNROLLED,
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

__all__ = ["PLUGINS", "DepthwisePointwise", "depthwise_pointwise"]


@triton.jit
def depthwise_pointwise_kernel(
    x,  # (N, H, W, K)
    weight,  # (k, k, K)
    bias,  # (K,)
    project_weight,  # (K, C)
    project_bias,  # (C,)
    residual,  # (N, H', W', C) or None
    y,  # (N, H', W', C)
    M,  # number of pixels of all images of y
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PROJECT_ACTIVATION: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_N channels of BLOCK_M pixels, also of several images, in each program."""
    OUT_WIDTH: tl.constexpr = (WIDTH - 1) // STRIDE + 1
    OUT_PIXELS: tl.constexpr = ((HEIGHT - 1) // STRIDE + 1) * OUT_WIDTH
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    outer = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    in_pixels, in_outer = pixels < M, outer < OUTER
    images = x + pixels // OUT_PIXELS * (HEIGHT * WIDTH * INNER)
    rows = pixels % OUT_PIXELS // OUT_WIDTH * STRIDE - KERNEL // 2
    rows = tl.where(in_pixels, rows, HEIGHT)
    columns = pixels % OUT_WIDTH * STRIDE - KERNEL // 2
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, INNER, BLOCK_K):
        channels = start + tl.arange(0, BLOCK_K)
        line = channels[None, :]
        hidden = add_window(
            tl.zeros((BLOCK_M, BLOCK_K), tl.float32),
            images + line,
            weight + line,
            rows,
            columns,
            line < INNER,
            HEIGHT,
            WIDTH,
            INNER,
            INNER,
            KERNEL,
        )
        hidden += tl.load(bias + line, mask=line < INNER, other=0.0).to(tl.float32)
        # Columns beyond INNER need not be zero: the weights that they are multiplied by are.
        a = activate(hidden, ACTIVATION).to(x.dtype.element_ty)
        b = tl.load(
            project_weight + channels[:, None] * OUTER + outer,
            mask=(channels[:, None] < INNER) & in_outer,
            other=0.0,
        )
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
    total += tl.load(project_bias + outer, mask=in_outer, other=0.0).to(tl.float32)
    total = activate(total, PROJECT_ACTIVATION)
    place = pixels * OUTER + outer
    known = in_pixels & in_outer
    if residual is not None:
        total += tl.load(residual + place, mask=known, other=0.0).to(tl.float32)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=known)


class DepthwisePointwise(Operator):
    """Depthwise convolution followed by a pointwise one.

    Bytes: x, weights, biases, residual and y, once each. Tolerance: that of float32 sums.

    Between the convolutions values are rounded to the type of x, as between two layers.
    """

    name = "depthwise_pointwise"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"images": 2, "height": 5, "width": 3, "inputs": 19, "outputs": 23}
        | {"kernel": 3, "stride": 1, "residual": 1},
        {"images": 1, "height": 9, "width": 6, "inputs": 40, "outputs": 24}
        | {"kernel": 5, "stride": 2, "residual": 0},
        {"images": 1, "height": 3, "width": 2, "inputs": 33, "outputs": 17}
        | {"kernel": 7, "stride": 1, "residual": 1},
    )
    measured = (
        {"images": 1, "height": 112, "width": 112, "inputs": 16, "outputs": 16}
        | {"kernel": 3, "stride": 1, "residual": 1},
        {"images": 1, "height": 56, "width": 56, "inputs": 96, "outputs": 24}
        | {"kernel": 5, "stride": 1, "residual": 1},
    )

    @staticmethod
    def reference(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        project_weight: Tensor,
        project_bias: Tensor,
        residual: Tensor | None = None,
        stride: int = 1,
        activation: str = "none",
        project_activation: str = "none",
    ) -> Tensor:
        """Compute the module's formula in PyTorch.

        Args:
            x: Feature maps, (N, H, W, K).
            weight: Depthwise weight, (k, k, K), k odd and at most 11; the map is padded by k // 2.
            bias: Bias of the depthwise convolution, (K,).
            project_weight: Pointwise weight, (K, C).
            project_bias: Bias of the pointwise convolution, (C,).
            residual: Residual, (N, H / stride, W / stride, C), rounded up, added at the end.
            stride: Stride of the depthwise convolution, 1 or 2.
            activation: Activation after the depthwise convolution, a name in
                `hwnas.kernels.primitives.activations.ACTIVATIONS`.
            project_activation: Activation after the pointwise convolution.

        Returns:
            Output y, (N, H / stride, W / stride, C), rounded up, in the type of x.
        """
        hidden = ACTIVATIONS[activation](convolve(x, weight, bias, stride))
        y = ACTIVATIONS[project_activation](hidden @ project_weight + project_bias)
        return y if residual is None else y + residual

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return images, height, width, channels in and out, k, stride and residual (0 or 1)."""
        check_stride(self.name, inputs["stride"])
        x, weight, project = inputs["x"], inputs["weight"], inputs["project_weight"]
        residual = inputs["residual"]
        fits = (
            x.dim() == 4
            and weight.dim() == 3
            and weight.shape == (weight.shape[1], weight.shape[1], x.shape[3])
            and inputs["bias"].shape == x.shape[3:]
            and project.dim() == 2
            and project.shape[0] == x.shape[3]
            and inputs["project_bias"].shape == project.shape[1:]
            and (
                residual is None
                or residual.shape == out_shape(x, inputs["stride"], project.shape[1])
            )
        )
        takes = (
            "x (N, H, W, K), weight (k, k, K), bias (K,), project_weight (K, C), project_bias (C,) "
            "and residual (N, H / stride, W / stride, C)"
        )
        check_shapes(self.name, takes, fits, inputs)
        check_windows(self.name, inputs)
        return dict(zip(("images", "height", "width", "inputs"), x.shape, strict=True)) | {
            "outputs": project.shape[1],
            "kernel": weight.shape[0],
            "stride": inputs["stride"],
            "residual": int(residual is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values; activations are ``hard_swish`` and ``relu``."""
        normal = RandomValues(dtype, generator, device).normal
        kernel, inner, outer = sizes["kernel"], sizes["inputs"], sizes["outputs"]
        images, height, width = out_map(sizes)
        return {
            "x": normal(images, sizes["height"], sizes["width"], inner),
            "weight": normal(kernel, kernel, inner, scale=1 / kernel),
            "bias": normal(inner),
            "project_weight": normal(inner, outer, scale=inner**-0.5),
            "project_bias": normal(outer),
            "residual": normal(images, height, width, outer) if sizes["residual"] else None,
            "stride": sizes["stride"],
            "activation": "hard_swish",
            "project_activation": "relu",
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x, channels = inputs["x"], inputs["project_weight"].shape[1]
        return (x.new_empty(out_shape(x, inputs["stride"], channels)),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        [y] = outputs
        _, height, width, inner = inputs["x"].shape
        pixels, outer = y.shape[:-1].numel(), y.shape[-1]
        tensors = ("x", "weight", "bias", "project_weight", "project_bias", "residual")
        return [
            Launch(
                depthwise_pointwise_kernel,
                (triton.cdiv(pixels, config["BLOCK_M"]), triton.cdiv(outer, config["BLOCK_N"])),
                {name: inputs[name] for name in tensors} | {"y": y, "M": pixels},
                {"HEIGHT": height, "WIDTH": width, "INNER": inner, "OUTER": outer}
                | {"KERNEL": inputs["weight"].shape[0], "STRIDE": inputs["stride"]}
                | {"ACTIVATION": inputs["activation"], "UPCAST": interpreting()}
                | {"PROJECT_ACTIVATION": inputs["project_activation"]}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return blocks whose sums fit into registers, and whose factors fit into shared memory."""
        images, height, width = out_map(sizes)
        # Loads of a step are issued one step ahead if their loop contains no other loop.
        ahead = sizes["kernel"] ** 2 if sizes["kernel"] <= UNROLLED.value else 0
        return Problem(
            {
                "BLOCK_M": powers(16, power_block(images * height * width, 128)),
                "BLOCK_N": powers(16, power_block(sizes["outputs"], 256)),
                "BLOCK_K": powers(16, power_block(sizes["inputs"], 256)),
                "num_warps": (1, 2, 4, 8),
                "num_stages": (1, 2, 3),
            },
            (
                Constraint(
                    lambda BLOCK_M, BLOCK_N, BLOCK_K, num_stages: (
                        (BLOCK_M * (1 + ahead * (num_stages - 1)) + BLOCK_N * num_stages)
                        * (BLOCK_K * dtype.itemsize)
                        <= gpu.shared_bytes
                    ),
                    "factors of the product do not fit into shared memory",
                ),
                Constraint(
                    lambda BLOCK_M, BLOCK_N, BLOCK_K, num_warps: (
                        BLOCK_M * (BLOCK_N + 2 * BLOCK_K) // (num_warps * WARP)
                        <= gpu.registers_per_thread // 2
                    ),
                    "sums of both convolutions take more than half of a thread's registers",
                ),
                Constraint(
                    lambda BLOCK_M, BLOCK_K, num_warps: (
                        window_registers(
                            BLOCK_M * BLOCK_K // (num_warps * WARP), sizes["kernel"], dtype
                        )
                        <= gpu.registers_per_thread // 2
                    ),
                    "values loaded for windows take more than half of a thread's registers",
                ),
                Constraint(
                    lambda BLOCK_M, BLOCK_K, num_warps: (
                        BLOCK_M * BLOCK_K // (num_warps * WARP) >= 2
                    ),
                    "there are fewer than two depthwise values for each thread",
                ),
                Constraint(
                    lambda BLOCK_K, num_stages: (
                        num_stages == 1 or BLOCK_K * (num_stages - 1) < sizes["inputs"]
                    ),
                    "there are more stages than steps",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return all output channels in one block if possible, and few steps if pixels are few."""
        images, height, width = out_map(sizes)
        pixels = images * height * width
        wide, ahead = sizes["kernel"] == UNROLLED.value, False
        if pixels >= 2048:
            block_m, deepest = (32 if wide else 64, 32) if pixels >= 16384 else (16, 32)
            ahead = not wide
        else:
            block_m, deepest = 16, 64 if wide else 128
        block_k = power_block(sizes["inputs"], deepest)
        return {
            "BLOCK_M": block_m,
            "BLOCK_N": power_block(sizes["outputs"], 128),
            "BLOCK_K": block_k,
            "num_warps": window_warps(block_m * block_k, sizes["inputs"], sizes["kernel"], dtype),
            "num_stages": 2 if ahead and block_k < sizes["inputs"] else 1,
        }

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work, with padding counted as multiplied."""
        images, height, width = out_map(sizes)
        inner, outer, window = sizes["inputs"], sizes["outputs"], sizes["kernel"] ** 2
        pixels = images * height * width
        values = images * sizes["height"] * sizes["width"] * inner + (window + 1) * inner
        values += (inner + 1) * outer + pixels * outer * (1 + sizes["residual"])
        return OperatorWork(values * dtype.itemsize, pixels * inner * (window + outer))


depthwise_pointwise = DepthwisePointwise()


PLUGINS = (
    Plugin(
        "operator",
        "depthwise_pointwise",
        depthwise_pointwise,
        "Depthwise and pointwise convolution in one kernel",
    ),
)
