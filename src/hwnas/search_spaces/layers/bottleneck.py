"""The residual blocks of ResNets (He et al., CVPR 2016, figure 5)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers.conv import ConvNormAct

__all__ = ["BasicBlock", "Bottleneck"]


class BasicBlock(nn.Module):
    """Convolve 3x3 twice, add the input: (N, C, H, W) -> (N, C', H / s, W / s).

    Args:
        in_channels: Channels of the input.
        hidden_channels: Channels between the convolutions.
        out_channels: Channels of the output.
        stride: Of the first convolution; 1 or 2.
        projected: Whether the input goes through a pointwise convolution before it is added; it
            has to where ``in_channels`` is not ``out_channels`` or the stride is not 1.
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
    """Reduce, convolve 3x3, expand, add the input: (N, C, H, W) -> (N, C', H / s, W / s).

    The stride is that of the 3x3 convolution, as in torchvision's networks (ResNet v1.5).

    Args:
        in_channels: Channels of the input.
        hidden_channels: Channels of the 3x3 convolution.
        out_channels: Channels of the output.
        stride: 1 or 2.
        projected: Whether the input goes through a pointwise convolution before it is added; it
            has to where ``in_channels`` is not ``out_channels`` or the stride is not 1.
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
    """What the input of a block goes through before it is added."""
    return ConvNormAct(in_channels, out_channels, 1, stride) if projected else nn.Identity()
