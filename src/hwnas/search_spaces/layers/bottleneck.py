"""Residual blocks of ResNets (He et al., CVPR 2016, figure 5)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers.conv import ConvNormAct

__all__ = ["BasicBlock", "Bottleneck"]


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


def _shortcut(in_channels: int, out_channels: int, stride: int, projected: bool) -> nn.Module:
    """Return the shortcut of a block: a projection or the identity."""
    return ConvNormAct(in_channels, out_channels, 1, stride) if projected else nn.Identity()
