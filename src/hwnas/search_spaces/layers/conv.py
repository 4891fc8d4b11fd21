"""Convolutions with normalisation and activation, and gates of channels."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d

__all__ = [
    "Activation",
    "ChannelShuffle",
    "ConvNormAct",
    "SqueezeExcite",
    "activation_of",
]

Activation = Literal["relu", "relu6", "hard_swish", "none"]


def activation_of(name: Activation) -> nn.Module:
    """Return the module of an activation; the identity for ``"none"``."""
    if name == "relu":
        return nn.ReLU(inplace=True)
    if name == "relu6":
        return nn.ReLU6(inplace=True)
    return nn.Hardswish(inplace=True) if name == "hard_swish" else nn.Identity()


class ConvNormAct(nn.Sequential):
    """Convolution, batch norm, activation: (N, C, H, W) -> (N, C', H / stride, W / stride)."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: Activation = "none",
    ) -> None:
        conv: nn.Conv2d
        if groups == in_channels == out_channels:
            conv = DepthwiseConv2d(in_channels, kernel_size, stride)
        else:
            conv = nn.Conv2d(
                in_channels,
                out_channels,
                kernel_size,
                stride,
                kernel_size // 2,
                groups=groups,
                bias=False,
            )
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        parts: list[tuple[str, nn.Module]] = [
            ("conv", conv),
            ("norm", nn.BatchNorm2d(out_channels)),
        ]
        if activation != "none":
            parts.append(("activation", activation_of(activation)))
        super().__init__(OrderedDict(parts))


class SqueezeExcite(nn.Module):
    """Channel gate: x * hard_sigmoid(W2 relu(W1 mean(x))), on (N, C, H, W)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.relu = nn.ReLU(inplace=True)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of x, shape (N, C, H, W), by their gates."""
        pooled = x.mean((2, 3), keepdim=True)
        gated: Tensor = x * self.gate(self.expand(self.relu(self.reduce(pooled))))
        return gated


class ChannelShuffle(nn.Module):
    """Channel shuffle between groups, on (N, C, H, W) (ShuffleNet, Zhang et al., CVPR 2018).

    It uses four dimensions, since some converters for mobile devices do not support five.
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """Return the first channel of each group, then the second of each, and so on."""
        _, channels, height, width = x.shape
        grouped = x.reshape(-1, self.groups, channels // self.groups, height * width)
        return grouped.transpose(1, 2).reshape(-1, channels, height, width)
