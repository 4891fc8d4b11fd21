"""Blocks of networks that mix convolution and attention on feature maps.

The attention is slimmed as in LowFormer (Nottebaum, Dunnhofer and Micheloni, WACV 2025, section 3):
a depthwise convolution reduces the map, attention works on half its channels, and a transposed
convolution restores both. Shapes: maps are (N, C, H, W); h heads have d channels each.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers.conv import ConvNormAct
from hwnas.search_spaces.layers.rounding import make_divisible

__all__ = ["Context", "ConvAttention"]

_SHRINKING = {1: 3, 2: 5}  # kernel of the depthwise convolution, by stride
_GROWING = {1: 3, 2: 4}  # kernel of the transposed convolution


class ConvAttention(nn.Module):
    """Attention on fewer channels and pixels: (N, C, H, W) -> (N, C, H, W).

    Args:
        channels: C.
        heads: h.
        head_width: d; attention works on h * d channels.
        stride: Stride of the depthwise convolution before the attention; 1 or 2.
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
        """Return the mixed pixels of x."""
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
    """Residual x + body(norm(x)), normalised by one mean and variance a map; shape (N, C, H, W)."""

    def __init__(self, channels: int, body: nn.Module) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Add the body's output to x."""
        y: Tensor = x + self.body(self.norm(x))
        return y

    @classmethod
    def attention(cls, channels: int, heads: int, head_width: int, stride: int) -> Context:
        """Return a block that mixes pixels by attention; see `ConvAttention`."""
        return cls(channels, ConvAttention(channels, heads, head_width, stride))

    @classmethod
    def perceptron(cls, channels: int, ratio: float) -> Context:
        """Return a block that transforms each pixel alone, through ``ratio`` times the channels."""
        hidden = make_divisible(channels * ratio)
        layers = OrderedDict[str, nn.Module](
            expand=nn.Conv2d(channels, hidden, 1),
            activation=nn.GELU(),
            reduce=nn.Conv2d(hidden, channels, 1),
        )
        return cls(channels, nn.Sequential(layers))
