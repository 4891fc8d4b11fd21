"""Convolution blocks of mobile networks (MobileNetV3, Howard et al., ICCV 2019, section 5)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d
from hwnas.search_spaces.layers.rounding import make_divisible

__all__ = [
    "Activation",
    "ChannelShuffle",
    "ConvNormAct",
    "InvertedBottleneck",
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


class InvertedBottleneck(nn.Module):
    """Expansion, depthwise convolution, squeeze-excite, projection; a residual where shapes allow.

    Args:
        in_channels: Channels of the input.
        hidden_channels: Channels of the depthwise convolution; no expansion layer if equal to
            ``in_channels``.
        out_channels: Channels of the output.
        kernel_size: Odd size of the depthwise kernel.
        stride: Stride of the depthwise convolution; 1 or 2.
        squeeze_excite: Whether there is a channel gate of a quarter of ``hidden_channels``.
        activation: Activation after the expansion and the depthwise convolution.
        groups: Groups of the pointwise convolutions; with several, channels are shuffled between
            groups after the expansion.
        always_expand: Whether there is an expansion layer even to ``in_channels``.
        depthwise: Depthwise convolution with its activation, in place of one of ``kernel_size``.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        squeeze_excite: bool,
        activation: Activation,
        groups: int = 1,
        always_expand: bool = False,
        depthwise: nn.Module | None = None,
    ) -> None:
        super().__init__()
        parts: list[tuple[str, nn.Module]] = []
        if always_expand or hidden_channels != in_channels:
            expand = ConvNormAct(in_channels, hidden_channels, groups=groups, activation=activation)
            parts.append(("expand", expand))
        if groups > 1:
            parts.append(("shuffle", ChannelShuffle(groups)))
        depthwise = depthwise or ConvNormAct(
            hidden_channels, hidden_channels, kernel_size, stride, hidden_channels, activation
        )
        parts.append(("depthwise", depthwise))
        if squeeze_excite:
            gate = SqueezeExcite(hidden_channels, make_divisible(hidden_channels / 4))
            parts.append(("squeeze_excite", gate))
        parts.append(("project", ConvNormAct(hidden_channels, out_channels, groups=groups)))
        self.layers = nn.Sequential(OrderedDict(parts))
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y
