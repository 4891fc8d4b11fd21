"""Five models as a user might have written them, each with a width multiplier.

All take images (N, C, H, W) and return (N, outputs). The factor `width` multiplies all channels,
which is the usual way to make such a model faster by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LEARNING_RATES", "MODELS", "cnn", "convnext", "mobilenet", "resnet", "vit"]

Shape = tuple[int, int, int]


def scaled(channels: int, width: float, step: int = 8) -> int:
    """Return the number of channels at a width, as a multiple of a step."""
    return max(step, round(channels * width / step) * step)


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch normalisation and activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def cnn(image_shape: Shape, outputs: int, width: float = 1.0) -> nn.Module:
    """Return six convolutions with pooling in between, as in a first tutorial."""
    layers: list[nn.Module] = []
    before = image_shape[2]
    for channels in (32, 64, 128):
        wide = scaled(channels, width)
        layers += [convolution(before, wide), convolution(wide, wide), nn.MaxPool2d(2)]
        before = wide
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Residual block of two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride)
        self.second = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.shortcut = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(x)) + self.shortcut(x))


def resnet(image_shape: Shape, outputs: int, width: float = 1.0) -> nn.Module:
    """Return ResNet-20 for small images (He et al., CVPR 2016, section 4.2)."""
    before = scaled(16, width)
    layers: list[nn.Module] = [convolution(image_shape[2], before)]
    for s, channels in enumerate((16, 32, 64)):
        for b in range(3):
            wide = scaled(channels, width)
            layers.append(Residual(before, wide, 2 if s and not b else 1))
            before = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


class Gate(nn.Module):
    """Squeeze-and-excitation block: scales each channel by a function of all channel means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, max(8, channels // 4), 1)
        self.expand = nn.Conv2d(max(8, channels // 4), channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.expand(functional.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * functional.hardsigmoid(gates)


class Inverted(nn.Module):
    """Inverted bottleneck: a wide depthwise convolution between two pointwise ones, with a gate."""

    def __init__(self, inputs: int, outputs: int, ratio: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * ratio
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.Hardswish(),
            Gate(hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet(image_shape: Shape, outputs: int, width: float = 1.0) -> nn.Module:
    """Return inverted bottlenecks with gates, as in MobileNetV3."""
    before = scaled(16, width)
    layers: list[nn.Module] = [convolution(image_shape[2], before, 3, 2)]
    for channels, stride, depth in ((24, 1, 2), (40, 2, 3), (80, 2, 3)):
        for b in range(depth):
            wide = scaled(channels, width)
            layers.append(Inverted(before, wide, 4, stride if b == 0 else 1))
            before = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


class Modern(nn.Module):
    """Block of ConvNeXt (Liu et al., CVPR 2022, figure 4): depthwise 7x7, then a perceptron."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.reduce = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.reduce(functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each pixel of (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(image_shape: Shape, outputs: int, width: float = 1.0) -> nn.Module:
    """Return three stages of ConvNeXt blocks after patches of two pixels."""
    before = scaled(24, width)
    layers: list[nn.Module] = [nn.Conv2d(image_shape[2], before, 2, 2), ChannelNorm(before)]
    for s, (channels, depth) in enumerate(((24, 2), (48, 3), (96, 2))):
        wide = scaled(channels, width)
        if s:
            layers += [ChannelNorm(before), nn.Conv2d(before, wide, 2, 2)]
        layers += [Modern(wide) for _ in range(depth)]
        before = wide
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(before),
        nn.Linear(before, outputs),
    )  # fmt: skip


class SelfAttention(nn.Module):
    """Attention between all tokens: (N, T, D) -> (N, T, D)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.project = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        shape = (batch, tokens, self.num_heads, self.head_dim)
        query, key, value = (
            layer(x).reshape(shape).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        joined = mixed.transpose(1, 2).reshape(batch, tokens, self.num_heads * self.head_dim)
        y: Tensor = self.project(joined)
        return y


class Encoder(nn.Module):
    """Block of a vision transformer."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, num_heads)
        self.between = nn.LayerNorm(dim)
        self.perceptron = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.perceptron(self.between(x))


class Vit(nn.Module):
    """Vision transformer: patches, positions, blocks, and the mean of all tokens."""

    def __init__(self, image_shape: Shape, outputs: int, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        height, width, channels = image_shape
        self.patches = nn.Conv2d(channels, dim, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, height // 4 * (width // 4), dim) * 0.02)
        self.blocks = nn.Sequential(*(Encoder(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, outputs)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        outputs: Tensor = self.classifier(self.norm(self.blocks(tokens)).mean(1))
        return outputs


def vit(image_shape: Shape, outputs: int, width: float = 1.0) -> nn.Module:
    """Return a small vision transformer: patches of four pixels, heads of 16 channels."""
    dim = scaled(96, width, 16)
    return Vit(image_shape, outputs, dim, dim // 16, 6)


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "resnet": resnet,
    "mobilenet": mobilenet,
    "convnext": convnext,
    "vit": vit,
}

LEARNING_RATES: Mapping[str, float] = dict.fromkeys(MODELS, 0.006) | {"vit": 0.0015}
"""Peak learning rate of each model, the same on all sides and for all training times."""
