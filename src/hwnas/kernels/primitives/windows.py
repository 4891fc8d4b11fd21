"""Windows of convolutions: pixels of a feature map that one output pixel depends on.

A window has an odd size and is padded by half of it, so at stride 1 a map keeps its size. Shapes of
maps are constants of the kernels: a searched network has few, and then the compiler knows that rows
of 24 or 72 channels can be loaded 16 bytes at a time, and divides by multiplying.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import WARP
from hwnas.kernels.operator import Inputs, Sizes

__all__ = [
    "STRIDES",
    "UNROLLED",
    "add_window",
    "check_stride",
    "check_windows",
    "convolve",
    "corners",
    "load_windows",
    "map_sides",
    "out_map",
    "out_shape",
    "window_product",
    "window_registers",
    "window_warps",
]

LARGEST = 11
STRIDES = (1, 2)
UNROLLED = tl.constexpr(5)  # largest window whose loads are all issued at once


@triton.jit
def add_window(
    total,  # (P, C), float32
    x,  # (1 or P, C) pointers to the channels of a map's first pixel
    weight,  # (1, C) pointers to the channels of a window's first tap
    rows,  # (P, 1) first row of each window; values outside of the map are zero
    columns,  # (P, 1) first column of each window
    known,  # (1, C) mask of channels
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PITCH: tl.constexpr,  # values from a pixel to the next
    WEIGHT_PITCH: tl.constexpr,  # values from a tap to the next
    KERNEL: tl.constexpr,
):
    """Add the products of P windows with their weights, tap by tap.

    Each thread loads the weights that it needs: (1, C) values from the first-level cache. A single
    load for all threads would have to go through shared memory.
    """
    if KERNEL <= UNROLLED:
        for row in tl.static_range(KERNEL):
            total = _add_line(
                total, x, weight, rows, columns, known, row,
                HEIGHT, WIDTH, PITCH, WEIGHT_PITCH, KERNEL,
            )  # fmt: skip
    else:  # not unrolled: 121 loads at once would not fit into registers
        for row in range(KERNEL):
            total = _add_line(
                total, x, weight, rows, columns, known, row,
                HEIGHT, WIDTH, PITCH, WEIGHT_PITCH, KERNEL,
            )  # fmt: skip
    return total


@triton.jit
def _add_line(
    total,
    x,
    weight,
    rows,
    columns,
    known,
    row,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PITCH: tl.constexpr,
    WEIGHT_PITCH: tl.constexpr,
    KERNEL: tl.constexpr,
):
    inside = (rows + row >= 0) & (rows + row < HEIGHT)
    pixels = (rows + row) * WIDTH + columns
    for column in tl.static_range(KERNEL):
        seen = inside & (columns + column >= 0) & (columns + column < WIDTH)
        value = tl.load(x + (pixels + column) * PITCH, mask=seen & known, other=0.0)
        factor = tl.load(weight + (row * KERNEL + column) * WEIGHT_PITCH, mask=known, other=0.0)
        total += value.to(tl.float32) * factor.to(tl.float32)
    return total


@triton.jit
def corners(windows, out_height, out_width, STRIDE: tl.constexpr, KERNEL: tl.constexpr):
    """Return images, top rows and left columns of windows that are counted row by row.

    Rows and columns are those of the map without its padding, so they can be negative.
    """
    lines = windows // out_width
    top = lines % out_height * STRIDE - KERNEL // 2
    return lines // out_height, top, windows % out_width * STRIDE - KERNEL // 2


@triton.jit
def load_windows(
    x,  # (images, height, width, C)
    corner,  # (M,) offsets of the windows' first values in x
    top,  # (M,)
    left,  # (M,)
    in_rows,  # (M, 1) mask of windows
    start,
    height,
    width,
    other,  # value outside of the map
    C: tl.constexpr,
    KERNEL: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return BLOCK_K of the KERNEL * KERNEL * C values of M windows, those from ``start`` on.

    Blocks cross the edges of pixels, so that lanes are wasted once and not in each pixel, as with 3
    channels. If a block lies in one pixel anyway, its position is one number and not one for each
    lane.
    """
    inner = start + tl.arange(0, BLOCK_K)[None, :]
    first = start if C % BLOCK_K == 0 else inner
    down = first // (KERNEL * C)
    row = top[:, None] + down
    column = left[:, None] + first // C % KERNEL
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    # A row of a window is contiguous in memory: k * C values.
    place = corner[:, None] + (down * (width - KERNEL) * C + inner)
    return tl.load(x + place, mask=inside & in_rows & (inner < KERNEL * KERNEL * C), other=other)


def out_map(sizes: Sizes) -> tuple[int, int, int]:
    """Return images, height and width of a convolution's output, for inputs of such sizes."""
    stride = sizes["stride"]
    return sizes["images"], _halved(sizes["height"], stride), _halved(sizes["width"], stride)


def window_product(sizes: Sizes) -> tuple[int, int, int]:
    """Return M, N and K of a dense convolution as a product (rows, columns, length of a sum)."""
    return math.prod(out_map(sizes)), sizes["outputs"], sizes["kernel"] ** 2 * sizes["inputs"]


def out_shape(x: Tensor, stride: int, channels: int) -> tuple[int, int, int, int]:
    """Return the shape of a convolution's output for x, (N, H, W, C)."""
    images, height, width, _ = x.shape
    return images, _halved(height, stride), _halved(width, stride), channels


def map_sides(x: Tensor, y: Tensor) -> dict[str, int]:
    """Return the sides of the maps (N, H, W, C) that a kernel reads and writes, by parameter."""
    sides = ("height", "width", "out_height", "out_width")
    return dict(zip(sides, (*x.shape[1:3], *y.shape[1:3]), strict=True))


def convolve(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Compute a depthwise convolution in PyTorch.

    Args:
        x: Feature maps, (N, H, W, C).
        weight: Weight, (k, k, C).
        bias: Bias, (C,).
        stride: Stride, 1 or 2.

    Returns:
        Output, (N, H / stride, W / stride, C), rounded up, contiguous.
    """
    kernels = weight.permute(2, 0, 1).unsqueeze(1)
    y = functional.conv2d(
        x.permute(0, 3, 1, 2),
        kernels,
        bias,
        stride,
        padding=weight.shape[0] // 2,
        groups=weight.shape[2],
    )
    return y.permute(0, 2, 3, 1).contiguous()


def check_stride(name: str, stride: int) -> None:
    """Raise if an operator does not take a stride.

    Raises:
        KernelError: The stride is neither 1 nor 2.
    """
    if stride not in STRIDES:
        raise KernelError(f"{name} takes strides 1 and 2; given {stride}")


def check_windows(name: str, inputs: Inputs) -> None:
    """Raise if an operator does not take the windows that it is called with.

    Args:
        name: Name of the operator.
        inputs: Inputs with a ``weight`` (k, k, C).

    Raises:
        KernelError: The windows are of even or too large size, or a tensor has 2^31 values or more.
    """
    size = inputs["weight"].shape[0]
    if size % 2 == 0 or size > LARGEST:
        raise KernelError(f"{name} takes windows of odd sizes up to {LARGEST}; given {size}")
    if max(value.numel() for value in inputs.values() if isinstance(value, Tensor)) >= 2**31:
        raise KernelError(f"{name} takes tensors of less than 2^31 values; use fewer images")


def window_registers(values: int, kernel: int, dtype: torch.dtype) -> int:
    """Return a thread's registers for sums over windows and for what it loads at once for them."""
    loads = kernel**2 if kernel <= UNROLLED.value else kernel
    return values + values * loads * dtype.itemsize // 4


def window_warps(values: int, channels: int, kernel: int, dtype: torch.dtype) -> int:
    """Return the number of warps that sum so many windows well.

    A thread loads 16 bytes for a tap; 8 bytes if the window is so large that there are no registers
    for all its taps, and two values if rows of channels are not aligned to 16 bytes.
    """
    vector = 16 // dtype.itemsize
    each = vector // 2 if kernel == UNROLLED.value else vector
    each = each if channels % vector == 0 else 2
    return min(8, max(1, values // (each * WARP)))


def _halved(size: int, stride: int) -> int:
    return (size - 1) // stride + 1
