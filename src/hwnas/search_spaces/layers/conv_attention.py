"""Blocks of networks that mix convolution and attention on feature maps.

Slimmed attention as in LowFormer (Nottebaum, Dunnhofer and Micheloni, WACV 2025, section 3):
attention works on half the channels of a map that a depthwise convolution has shrunk, and a
transposed convolution brings both back. Shapes: maps are (N, C, H, W), h heads have d channels.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers.conv import Activation, ConvNormAct
from hwnas.search_spaces.layers.rounding import make_divisible

__all__ = ["Context", "ConvAttention", "FusedBottleneck"]

_SHRINKING = {1: 3, 2: 5}  # kernel of the depthwise convolution, by stride
_GROWING = {1: 3, 2: 4}  # kernel of the transposed convolution


class ConvAttention(nn.Module):
    """Attention on fewer channels and pixels: (N, C, H, W) -> (N, C, H, W).

    Args:
        channels: C.
        heads: h.
        head_width: d; h * d is the number of channels that attention works on.
        stride: 1 or 2; of the map that attention works on.
    """

    def __init__(self, channels: int, heads: int, head_width: int, stride: int) -> None:
        super().__init__()
        inner = heads * head_width
        self.shrink = ConvNormAct(channels, channels, _SHRINKING[stride], stride, channels)
        self.query = nn.Conv2d(channels, inner, 1, bias=False)
        self.key = nn.Conv2d(channels, inner, 1, bias=False)
        self.value = nn.Conv2d(channels, inner, 1, bias=False)
        self.grow = nn.ConvTranspose2d(inner, channels, _GROWING[stride], stride, 1)
        self._split = (heads, head_width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the pixels of x."""
        height, width = x.shape[2:]
        y: Tensor = self.shrink(x)
        pixels = y.shape[2:]
        query, key, value = (
            layer(y).flatten(2).unflatten(1, self._split)  # (N, h, d, pixels)
            for layer in (self.query, self.key, self.value)
        )
        scores = (query * self._split[1] ** -0.5).transpose(2, 3) @ key
        mixed = value @ scores.softmax(3).transpose(2, 3)
        y = self.grow(mixed.flatten(1, 2).unflatten(2, pixels))
        return y[:, :, :height, :width]  # an odd side was rounded up


class Context(nn.Module):
    """x + body(norm(x)), with one mean and variance for a whole map: (N, C, H, W) unchanged."""

    def __init__(self, channels: int, body: nn.Module) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Add what the body makes of x."""
        y: Tensor = x + self.body(self.norm(x))
        return y

    @classmethod
    def attention(cls, channels: int, heads: int, head_width: int, stride: int) -> Context:
        """Pixels mix; see `ConvAttention`."""
        return cls(channels, ConvAttention(channels, heads, head_width, stride))

    @classmethod
    def perceptron(cls, channels: int, ratio: float) -> Context:
        """Each pixel changes by itself, through ``ratio`` times as many channels."""
        hidden = make_divisible(channels * ratio)
        layers = OrderedDict[str, nn.Module](
            expand=nn.Conv2d(channels, hidden, 1),
            activation=nn.GELU(),
            reduce=nn.Conv2d(hidden, channels, 1),
        )
        return cls(channels, nn.Sequential(layers))


class FusedBottleneck(nn.Module):
    """A full 3x3 convolution to more channels and a pointwise one back (EfficientNetV2).

    (N, C, H, W) -> (N, C', H / stride, W / stride), with a residual where shapes allow.

    Args:
        in_channels: C.
        hidden_channels: Between the two.
        out_channels: C'.
        stride: 1 or 2.
        activation: After the first of the two.
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
        """Map x to its new shape."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y
