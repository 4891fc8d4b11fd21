"""Dense k x k convolution by implicit GEMM: windows are gathered while they are multiplied.

y = activation(x * W + b) + residual, or activation(x * W + b + residual), where batch normalisation
is folded into W and b. The convolution is a product of matrices: a row of k * k * C values for each
window times W, accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs
from hwnas.kernels.operators.dense_convolution import DenseConvolution
from hwnas.kernels.primitives.tiles import alignment, load_tile, product_blocks, store_activated
from hwnas.kernels.primitives.windows import corners, load_windows, map_sides
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Convolution", "convolution"]


@triton.jit
def convolution_kernel(
    x,  # (images, height, width, C)
    weight,  # (KERNEL * KERNEL * C, N)
    bias,  # (N,)
    residual,  # (M, N) or None
    y,  # (M, N)
    M,  # number of windows
    N,
    height,
    width,
    out_height,
    out_width,
    C: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN_N: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RESIDUAL_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_N channels of BLOCK_M windows in each program."""
    N = N // ALIGN_N * ALIGN_N
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image, top, left = corners(rows, out_height, out_width, STRIDE, KERNEL)
    corner = ((image * height + top) * width + left) * C
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, KERNEL * KERNEL * C, BLOCK_K):
        a = load_windows(
            x, corner, top, left, rows[:, None] < M, start, height, width, 0.0, C, KERNEL, BLOCK_K
        )
        inner = start + tl.arange(0, BLOCK_K)
        if UPCAST:
            a = a.to(tl.float32)
        b = load_tile(weight, inner, KERNEL * KERNEL * C, N, columns, N, UPCAST)
        total = tl.dot(a, b, total, input_precision="ieee")
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION, RESIDUAL_FIRST)


class Convolution(DenseConvolution):
    """Dense convolution by implicit GEMM.

    Bytes: x, W, b, residual and y, once each. Tolerance: that of a product with float32 sums.
    """

    name = "convolution"

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        x, weight, (y,) = inputs["x"], inputs["weight"], outputs
        inner, outer, rows = x.shape[3], y.shape[3], y.shape[:-1].numel()
        return [
            Launch(
                convolution_kernel,
                product_blocks(rows, outer, config),
                {name: inputs[name] for name in ("x", "weight", "bias", "residual")}
                | {"y": y, "M": rows, "N": outer, **map_sides(x, y)},
                {"C": inner, "KERNEL": len(weight), "STRIDE": inputs["stride"]}
                | {"ACTIVATION": inputs["activation"], "UPCAST": interpreting()}
                | {"RESIDUAL_FIRST": inputs["residual_first"]}
                | {"ALIGN_N": alignment(outer)}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]


convolution = Convolution()


PLUGINS = (Plugin("operator", "convolution", convolution, "Dense convolution by implicit GEMM"),)
