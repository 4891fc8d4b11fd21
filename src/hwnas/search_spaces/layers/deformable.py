"""Deformable depthwise convolution with a limited range and a square shape."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.search_spaces.layers.conv import Activation, ConvNormAct
from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d

__all__ = ["REACH", "DeformableConv2d", "DeformableDepthwise", "deformed"]

REACH = 3.0
"""Largest distance of a tap from the centre of its kernel, in pixels, in each direction."""

_KERNEL = 3


def deformed(x: Tensor, offsets: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    """Return a convolution whose taps are moved by offsets: (N, C', H', W').

    The result is that of ONNX's ``DeformConv`` with one group of offsets and a padding of half the
    kernel: pixels between others are interpolated linearly, pixels outside of the image are 0 (Dai
    et al., "Deformable Convolutional Networks", ICCV 2017, equations 2 to 4).

    Args:
        x: (N, C, H, W).
        offsets: Vertical and horizontal offset of each tap in turn, (N, 2 k k, H', W'), in pixels.
        weight: (C', C / groups, k, k), with an odd k.
        stride: Stride in both directions.
        groups: Groups of channels.
    """
    side, (height, width) = weight.shape[2], x.shape[2:]
    rows, columns = offsets.shape[2:]
    taps = torch.arange(side, device=x.device, dtype=offsets.dtype) - side // 2
    down, right = torch.meshgrid(taps, taps, indexing="ij")
    places = torch.arange(max(rows, columns), device=x.device, dtype=offsets.dtype) * stride
    y = offsets[:, ::2] + down.reshape(1, -1, 1, 1) + places[:rows].view(1, 1, -1, 1)
    z = offsets[:, 1::2] + right.reshape(1, -1, 1, 1) + places[:columns].view(1, 1, 1, -1)
    # In `grid_sample`, -1 and 1 are the outer edges of the image.
    grid = torch.stack([(2 * z + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    sampled = functional.grid_sample(
        x, grid.flatten(1, 2), "bilinear", "zeros", align_corners=False
    )  # (N, C, k k H', W')
    parts = sampled.reshape(len(x), groups, -1, side * side, rows, columns)
    kernels = weight.reshape(groups, -1, *weight.shape[1:2], side * side)
    return torch.einsum("ngckhw,gock->ngohw", parts, kernels).flatten(1, 2)


_operator = torch.library.custom_op("hwnas::deform_conv2d", deformed, mutates_args=())
"""The same as one operator, for counts and exports; it has no gradient."""


@_operator.register_fake
def _shape_of(x: Tensor, offsets: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], *offsets.shape[2:])


class DeformableConv2d(DepthwiseConv2d):
    """Depthwise 3x3 convolution whose kernel is as wide as the image asks for, at each place.

    The taps keep the shape of a square and its centre. A convolution of the input gives their
    distance d at each place, at most `REACH`; with initial weights it is 1, as of a plain kernel.
    Both limits are those of CoDeNet (Huang et al., "CoDeNet: Efficient Deployment of
    Input-Adaptive Object Detection on Embedded FPGAs", FPGA 2021, section 3): so few rows of the
    image have to be at hand, and the taps of neighbouring places are read together. Distances are
    not rounded.

    Args:
        channels: Channels of input and output.
        stride: Stride in both directions.
    """

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__(channels, _KERNEL, stride)
        self.distance = nn.Conv2d(channels, 1, _KERNEL, stride, _KERNEL // 2)
        nn.init.zeros_(self.distance.weight)
        nn.init.constant_(self.distance.bias, -math.log(REACH - 1))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x, shape (N, C, H, W)."""
        further = self.distance(x).sigmoid() * REACH - 1  # than the taps of a plain kernel
        nearer, still = further * -1, further * 0
        moves = {-1: nearer, 0: still, 1: further}
        offsets = torch.cat([moves[step] for i in moves for j in moves for step in (i, j)], 1)
        whole = x.is_meta or torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
        run = torch.ops.hwnas.deform_conv2d if whole else deformed
        y: Tensor = run(x, offsets, self.weight, self.stride[0], self.groups)
        return y if self.bias is None else y + self.bias.view(1, -1, 1, 1)

    def line_buffer_bytes(self, width: int, bits: int = 8) -> int:
        """Return the memory that holds all rows which one row of outputs may read.

        Args:
            width: Width of the input, in pixels.
            bits: Bits of one element.
        """
        rows = 2 * math.ceil(REACH) + 1
        return rows * width * self.in_channels * bits // 8


class DeformableDepthwise(ConvNormAct):
    """Deformable convolution, batch norm, activation: (N, C, H, W) -> (N, C, H / s, W / s)."""

    def __init__(self, channels: int, stride: int, activation: Activation) -> None:
        super().__init__(channels, channels, _KERNEL, stride, channels, activation)
        conv = DeformableConv2d(channels, stride)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        self.conv = conv
