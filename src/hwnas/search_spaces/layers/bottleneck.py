"""Residual blocks: those of ResNets (He et al., CVPR 2016, figure 5), and inverted bottlenecks."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers.conv import (
    Activation,
    ChannelShuffle,
    ConvNormAct,
    SqueezeExcite,
)
from hwnas.search_spaces.layers.rounding import make_divisible

__all__ = ["BasicBlock", "Bottleneck", "FusedBottleneck", "InvertedBottleneck"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a residual: (N, C, H, W) -> (N, C', H / s, W / s).

    Args:
        in_channels: Channels of the input.
        hidden_channels: Channels between the convolutions.
        out_channels: Channels of the output.
        stride: Stride of the first convolution; 1 or 2.
        projected: Whether a pointwise convolution projects the input before it is added; required
            if ``in_channels`` differs from ``out_channels`` or the stride is not 1.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        stride: int = 1,
        projected: bool = False,
    ) -> None:
        super().__init__()
        first = ConvNormAct(in_channels, hidden_channels, 3, stride, activation="relu")
        second = ConvNormAct(hidden_channels, out_channels, 3)
        self.body = nn.Sequential(OrderedDict(first=first, second=second))
        self.shortcut = _shortcut(in_channels, out_channels, stride, projected)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        y: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return y


class Bottleneck(nn.Module):
    """Pointwise, 3x3, pointwise convolution and residual: (N, C, H, W) -> (N, C', H / s, W / s).

    The 3x3 convolution has the stride, as in torchvision's networks (ResNet v1.5).

    Args:
        in_channels: Channels of the input.
        hidden_channels: Channels of the 3x3 convolution.
        out_channels: Channels of the output.
        stride: Stride of the 3x3 convolution; 1 or 2.
        projected: Whether a pointwise convolution projects the input before it is added; required
            if ``in_channels`` differs from ``out_channels`` or the stride is not 1.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        stride: int = 1,
        projected: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            OrderedDict(
                reduce=ConvNormAct(in_channels, hidden_channels, activation="relu"),
                spatial=ConvNormAct(hidden_channels, hidden_channels, 3, stride, activation="relu"),
                expand=ConvNormAct(hidden_channels, out_channels),
            )
        )
        self.shortcut = _shortcut(in_channels, out_channels, stride, projected)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        y: Tensor = self.activation(self.layers(x) + self.shortcut(x))
        return y


class InvertedBottleneck(nn.Module):
    """Expansion, depthwise convolution, squeeze-excite, projection; a residual where shapes allow.

    See MobileNetV3, Howard et al., ICCV 2019, section 5.

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


class FusedBottleneck(nn.Module):
    """Full 3x3 convolution to more channels and a pointwise one back.

    See EfficientNetV2, Tan and Le, ICML 2021.

    (N, C, H, W) -> (N, C', H / stride, W / stride), with a residual where shapes allow.

    Args:
        in_channels: C.
        hidden_channels: Channels between the convolutions.
        out_channels: C'.
        stride: Stride of the 3x3 convolution; 1 or 2.
        activation: Activation after the 3x3 convolution.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        stride: int,
        activation: Activation = "hard_swish",
    ) -> None:
        super().__init__()
        expand = ConvNormAct(in_channels, hidden_channels, 3, stride, activation=activation)
        project = ConvNormAct(hidden_channels, out_channels)
        self.layers = nn.Sequential(OrderedDict(expand=expand, project=project))
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H / stride, W / stride)."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


def _shortcut(in_channels: int, out_channels: int, stride: int, projected: bool) -> nn.Module:
    """Return the shortcut of a block: a projection or the identity."""
    return ConvNormAct(in_channels, out_channels, 1, stride) if projected else nn.Identity()
