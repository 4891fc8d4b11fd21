"""Baselines: published networks at several widths and resolutions.

MobileNetV3-Small as published (Howard et al., ICCV 2019, table 2), including its classifier;
residual networks for small images (He et al., CVPR 2016, section 4.2), with three stages of three
blocks as in ResNet-20, and with four stages of two blocks as in ResNet-18.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor, nn

from experiments.alone import Alone
from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.layers import BasicBlock, ConvNormAct, make_divisible
from hwnas.search_spaces.mobilenet.config import MobileNetConfig
from hwnas.search_spaces.mobilenet.presets import PRESETS

__all__ = ["RIVALS", "Rival"]

_PUBLISHED = (224, 224, 3)
_SMALL = PRESETS["mobilenet-v3-small"](_PUBLISHED)
_RESNETS = {"resnet-20": ((16, 32, 64), 3), "resnet-18": ((64, 128, 256, 512), 2)}
"""Channels of the stages, and the number of blocks in each stage."""


@dataclass(frozen=True)
class Rival:
    """Published network, scaled.

    Attributes:
        family: Name of the published network.
        width: Multiplier of all channels.
        resolution: Height and width of the input, in pixels.
    """

    family: Literal["mobilenet-v3-small", "resnet-20", "resnet-18"]
    width: float
    resolution: int

    def build(self, in_channels: int, outputs: int) -> nn.Module:
        """Return a plain module: (N, in_channels, resolution, resolution) -> (N, outputs)."""
        if self.family in _RESNETS:
            channels, blocks = _RESNETS[self.family]
            wide = [make_divisible(c * self.width) for c in channels]
            return ResNet(in_channels, wide, blocks, outputs)
        return _mobilenet(replace(_SMALL, in_channels=in_channels, outputs=outputs), self)

    def alone(self, in_channels: int, outputs: int) -> Alone:
        """Return the network in the form that `train_alone` takes."""
        shape = (in_channels, self.resolution, self.resolution)
        name = f"{self.family}-w{self.width:g}-r{self.resolution}"
        return Alone(name, partial(self.build, in_channels, outputs), shape, dict(vars(self)))


def _mobilenet(config: MobileNetConfig, rival: Rival) -> nn.Module:
    """Return a scaled MobileNet.

    Dropout is left out: small networks that are trained for minutes do not overfit.
    """
    scaled = replace(config, width=(rival.width,), resolution=(rival.resolution,), dropout=0.0)
    space = MobileNetSpace(scaled)
    return space.build(space.smallest())


class ResNet(nn.Module):
    """Residual network of stages of basic blocks: (N, C, H, W) -> (N, outputs).

    Each stage after the first halves height and width.

    Args:
        in_channels: Channels of the images, C.
        channels: Channels of each stage; the first convolution has those of the first stage.
        blocks: Number of blocks in each stage.
        outputs: Length of the output vector.
    """

    def __init__(self, in_channels: int, channels: list[int], blocks: int, outputs: int) -> None:
        super().__init__()
        self.stem = ConvNormAct(in_channels, channels[0], 3, activation="relu")
        stages, before = [], channels[0]
        for s, wide in enumerate(channels):
            for b in range(blocks):
                stride = 2 if s and not b else 1
                projected = before != wide or stride != 1
                stages.append(BasicBlock(before, wide, wide, stride, projected))
                before = wide
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(before, outputs)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.classifier(self.stages(self.stem(images)).mean((2, 3)))
        return outputs


RIVALS = (
    Rival("mobilenet-v3-small", 1.0, 64),
    Rival("resnet-20", 0.5, 16),
    Rival("resnet-20", 0.5, 32),
    Rival("resnet-20", 1.0, 32),
    Rival("resnet-18", 0.125, 32),
    Rival("resnet-18", 0.25, 32),
)
