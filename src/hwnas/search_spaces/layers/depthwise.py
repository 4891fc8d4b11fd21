"""Depthwise convolution that trains fast on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["DepthwiseConv2d"]

_FAST_WIDTH = 3


class DepthwiseConv2d(nn.Conv2d):
    """Depthwise convolution, zero-padded to keep the size: (N, C, H, W) -> (N, C, H/s, W/s).

    The result is that of torch's convolution, but the gradient of the weights is computed
    differently. oneDNN is fast for kernels of up to three columns and several times slower for
    wider ones, so a wide kernel's gradient is concatenated from groups of two or three columns.
    Autocast on a CPU leaves the convolution in float32, since oneDNN is slower in bfloat16.

    Args:
        channels: Channels of input and output.
        kernel_size: Odd size of the kernel.
        stride: Stride in both directions.
    """

    def __init__(self, channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__(
            channels, channels, kernel_size, stride, kernel_size // 2, groups=channels, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x, shape (N, C, H, W)."""
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return self.forward(x.float())
        (stride, _), padding = self.stride, self.weight.shape[3] // 2
        wide = self.weight.shape[3] > _FAST_WIDTH and x.shape[3] >= padding
        if wide and x.device.type == "cpu" and self.training and torch.is_grad_enabled():
            y: Tensor = _WideDepthwise.apply(x, self.weight, stride, padding)  # type: ignore[no-untyped-call]
            return y
        return super().forward(x)


class _WideDepthwise(torch.autograd.Function):
    """Depthwise convolution that computes the gradient of its weights a few columns at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return functional.conv2d(x, weight, None, stride, padding, 1, x.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            padding = (ctx.padding, ctx.padding)
            of_x = _gradient(gradient, x, weight, ctx.stride, padding, (True, False))
        if ctx.needs_input_grad[1]:
            of_weight = _gradient_of_weight(gradient, x, weight, ctx.stride, ctx.padding)
        return of_x, of_weight, None, None


def _gradient_of_weight(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int
) -> Tensor:
    """Return the gradient of the weights, each group of columns from a shifted, padded input."""
    channels, _, height, width = weight.shape
    # Padding rows inside the convolution is as fast, if the kernel is no taller than its input.
    inside = padding if stride == 1 and x.shape[2] >= height else 0
    reach, first, parts = stride * (gradient.shape[3] - 1), 0, []
    for columns in _groups(width):
        left = padding - first
        right = first + reach + columns - padding - x.shape[3]
        outside = padding - inside
        seen = functional.pad(x, (left, right, outside, outside))
        like = weight.new_empty(channels, 1, height, columns)
        parts.append(_gradient(gradient, seen, like, stride, (inside, 0), (False, True)))
        first += columns
    return torch.cat(parts, 3)


def _groups(width: int) -> list[int]:
    """Return group sizes of two or three columns; a group of one would be slow again."""
    count = -(-width // _FAST_WIDTH)
    return [width // count + (i < width % count) for i in range(count)]


def _gradient(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: tuple[int, int],
    wanted: tuple[bool, bool],
) -> Tensor:
    """Return the gradient of the input or of the weights, computed by torch's own kernels."""
    found = torch.ops.aten.convolution_backward(
        gradient,
        x,
        weight,
        None,
        [stride, stride],
        padding,
        [1, 1],
        False,
        [0, 0],
        x.shape[1],
        [*wanted, False],
    )
    result: Tensor = found[0] if wanted[0] else found[1]
    return result
