"""Modules of an `EdsrSpace`, built from chosen options."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.search_spaces.edsr.config import BodyBlock, EdsrConfig

__all__ = ["Edsr", "body_block", "stem", "tail"]

_LEAST_VARIANCE = 1e-8  # the gradient of a root is infinite at 0
_SMALL = 0.1  # factor of the initial weights before a sum


class Edsr(nn.Module):
    """Network of an `EdsrSpace`: (N, C, h, w) -> (N, outputs, upscale h, upscale w).

    Args:
        stem: First convolution.
        body: Residual blocks.
        tail: Last convolution, which gives ``upscale ** 2`` pixels of each channel at each place.
        upscale: Factor of the outputs' height and width.
        anchored: Whether the image, enlarged by repeating its pixels, is added.
    """

    def __init__(
        self,
        stem: nn.Module,
        body: nn.Sequential,
        tail: nn.Module,
        upscale: int,
        anchored: bool,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.body = body
        self.tail = tail
        self.upscale = upscale
        self.anchored = anchored

    def forward(self, images: Tensor) -> Tensor:
        """Return pictures (N, outputs, upscale h, upscale w) of images (N, C, h, w)."""
        pictures: Tensor = self.tail(self.body(self.stem(images)))
        if self.upscale > 1:
            pictures = functional.pixel_shuffle(pictures, self.upscale)
            if self.anchored:
                images = functional.interpolate(images, pictures.shape[2:], mode="nearest")
        return pictures + images if self.anchored else pictures


class _Residual(nn.Module):
    """Layers whose output is added to their input: (N, C, H, W) -> (N, C, H, W)."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the output of the layers."""
        y: Tensor = x + self.layers(x)
        return y


class _AdaptiveResidual(_Residual):
    """Residual block that normalises, and restores the deviation of its input.

    With the standard deviation s of an image's map, the output is x + (a s + b) f(norm(x)).
    """

    def __init__(self, layers: nn.Sequential, channels: int) -> None:
        super().__init__(layers)
        self.norm = nn.BatchNorm2d(channels)
        self.slope = nn.Parameter(torch.tensor([1.5]))
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the scaled output of the layers."""
        centred = x - x.mean((1, 2, 3), keepdim=True)
        variance = (centred * centred).mean((1, 2, 3), keepdim=True)
        deviation = (variance + _LEAST_VARIANCE).sqrt()
        scale = self.slope * deviation + self.offset
        y: Tensor = x + scale * self.layers(self.norm(x))
        return y


def stem(config: EdsrConfig, channels: int) -> nn.Conv2d:
    """Return the first convolution."""
    return _convolution(config.in_channels, channels)


def tail(config: EdsrConfig, channels: int) -> nn.Conv2d:
    """Return the last convolution; its initial outputs are small beside the enlarged image."""
    return _small(_convolution(channels, config.outputs * config.upscale**2))


def body_block(
    config: EdsrConfig, channels: int, kind: BodyBlock, expand_ratio: float
) -> nn.Module:
    """Return a residual block."""
    hidden = config.hidden_at(channels, expand_ratio)
    kernel_size = {"dense": 3, "fused": 1, "separable": 1}[kind]
    first = _convolution(channels, hidden, 1 if kind == "separable" else 3)
    layers: dict[str, nn.Module] = {"first": first, "activation": nn.ReLU(inplace=True)}
    if kind == "separable":
        layers["depthwise"] = _convolution(hidden, hidden, groups=hidden)
        layers["depthwise_activation"] = nn.ReLU(inplace=True)
    layers["last"] = _small(_convolution(hidden, channels, kernel_size))
    whole = nn.Sequential(OrderedDict(layers))
    if config.normalisation == "adaptive":
        return _AdaptiveResidual(whole, channels)
    return _Residual(whole)


def _convolution(inputs: int, outputs: int, kernel_size: int = 3, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size, padding=kernel_size // 2, groups=groups)


def _small(convolution: nn.Conv2d) -> nn.Conv2d:
    """Return a convolution with smaller initial weights, in place of EDSR's residual scaling."""
    with torch.no_grad():
        for parameter in convolution.parameters():
            parameter.mul_(_SMALL)
    return convolution
