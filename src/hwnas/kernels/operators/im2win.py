"""Dense k x k convolution by Im2win: windows that were laid out side by side, and a plain product.

As in Im2win (Lu, Chu and Liu, IEEE HPEC 2022, section III): for each row of windows the columns of
the padded map are stored one after the other, each with the k * C values that the row covers. A
window then is k neighbouring columns, k * k * C contiguous values, and windows share the columns in
which they overlap: 1 / k of what im2col stores at stride 1, 2 / k at stride 2. The paper is about
NCHW and SIMD lanes; here channels come last and tensor cores multiply. The formula and the layout
of W are those of `convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hwnas.kernels.arguments import check_counts
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Sizes
from hwnas.kernels.operators.dense_convolution import DenseConvolution
from hwnas.kernels.primitives.tiles import alignment, product_blocks, store_activated
from hwnas.kernels.primitives.windows import out_map
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Im2win", "im2win"]

_PACKED = 1024  # values that a program copies


@triton.jit
def window_order_kernel(
    x,  # (images, height, width, C)
    packed,  # (images, out_height, width + KERNEL - 1, KERNEL, C)
    height,
    width,
    out_height,
    C: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy BLOCK values of a row of windows in each program."""
    line = tl.program_id(0)
    values = (width + KERNEL - 1) * KERNEL * C
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = place // (KERNEL * C) - KERNEL // 2
    row = line % out_height * STRIDE + place // C % KERNEL - KERNEL // 2
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (place < values)
    source = ((line // out_height * height + row) * width + column) * C + place % C
    value = tl.load(x + source, mask=inside, other=0.0)
    tl.store(packed + line * values + place, value, mask=place < values)


@triton.jit
def im2win_kernel(
    packed,  # (images, out_height, width + KERNEL - 1, KERNEL, C)
    weight,  # (KERNEL * KERNEL * C, N)
    bias,  # (N,)
    residual,  # (M, N) or None
    y,  # (M, N)
    M,  # number of windows
    N,
    width,
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
    line = rows // out_width * (width + KERNEL - 1)
    window = (line + rows % out_width * STRIDE) * (KERNEL * C)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, KERNEL * KERNEL * C, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            packed + window[:, None] + inner[None, :],
            mask=(rows[:, None] < M) & (inner[None, :] < KERNEL * KERNEL * C),
            other=0.0,
        )
        # Windows are stored column by column, weights row by row.
        tap = inner // C % KERNEL * KERNEL + inner // (KERNEL * C)
        b = tl.load(
            weight + (tap * C + inner % C)[:, None] * N + columns[None, :],
            mask=(inner[:, None] < KERNEL * KERNEL * C) & (columns[None, :] < N),
            other=0.0,
        )
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION, RESIDUAL_FIRST)


class Im2win(DenseConvolution):
    """Dense convolution by Im2win.

    Bytes: x, W, b, residual and y, once each, and all stored windows twice. Tolerance: that of a
    product with float32 sums.
    """

    name = "im2win"

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch that lays out the windows, and the one that multiplies them."""
        x, weight, (y,) = inputs["x"], inputs["weight"], outputs
        images, height, width, inner = x.shape
        _, out_height, out_width, outer = y.shape
        side, rows = len(weight), y.shape[:-1].numel()
        columns = width + side - 1
        check_counts(self.name, self.batched, images * out_height * columns * side * inner)
        packed = x.new_empty(images, out_height, columns, side, inner)
        window = {"C": inner, "KERNEL": side, "STRIDE": inputs["stride"]}
        pack = Launch(
            window_order_kernel,
            (images * out_height, triton.cdiv(packed[0, 0].numel(), _PACKED)),
            {"x": x, "packed": packed, "height": height, "width": width, "out_height": out_height},
            {**window, "BLOCK": _PACKED},
        )
        multiply = Launch(
            im2win_kernel,
            product_blocks(rows, outer, config),
            {"packed": packed, "y": y, "M": rows, "N": outer, "width": width}
            | {"out_width": out_width}
            | {name: inputs[name] for name in ("weight", "bias", "residual")},
            {**window, "ALIGN_N": alignment(outer)}
            | {"ACTIVATION": inputs["activation"], "UPCAST": interpreting()}
            | {"RESIDUAL_FIRST": inputs["residual_first"]}
            | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
            config["num_warps"],
            config["num_stages"],
        )
        return [pack, multiply]

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes of the product, and those of the windows as they are laid out."""
        images, height, _ = out_map(sizes)
        columns = sizes["width"] + sizes["kernel"] - 1
        laid_out = images * height * columns * sizes["kernel"] * sizes["inputs"]
        return super().traffic(sizes, dtype, config) + 2 * laid_out * dtype.itemsize


im2win = Im2win()


PLUGINS = (Plugin("operator", "im2win", im2win, "Dense convolution by Im2win"),)
