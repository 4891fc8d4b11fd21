"""Modules of a `ResNetSpace`, built from chosen options."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers import (
    BasicBlock,
    Bottleneck,
    ConvNormAct,
    FusedBottleneck,
    InvertedBottleneck,
)
from hwnas.search_spaces.resnet.config import BlockKind, ResNetConfig

__all__ = ["ResNet", "block", "classifier", "first_block", "stem"]


class ResNet(nn.Module):
    """Network of a `ResNetSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, stem: nn.Module, stages: list[nn.Sequential], classifier: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return outputs (N, outputs) of images (N, C, H, W)."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        outputs: Tensor = self.classifier(x.mean((2, 3)))
        return outputs


def stem(config: ResNetConfig, width: float) -> nn.Module:
    """Return the first convolution, with the max pooling after it if there is one."""
    conv = ConvNormAct(
        config.in_channels,
        config.stem_at(width),
        config.stem_kernel_size,
        config.stem_stride,
        activation="relu",
    )
    parts: dict[str, nn.Module] = {"conv": conv}
    if config.stem_pool:
        parts["pool"] = nn.MaxPool2d(3, config.strides[1], 1)
    return nn.Sequential(OrderedDict(parts))


def first_block(
    config: ResNetConfig, s: int, before: float, width: float, expand_ratio: float
) -> nn.Module:
    """Return the first block of stage ``s``; ``before`` is the width multiplier of its input."""
    stage = config.stages[s]
    inputs = config.stages[s - 1].channels_at(before) if s else config.stem_at(before)
    hidden, outputs = stage.hidden_at(width, expand_ratio), stage.channels_at(width)
    return _block(stage.block, inputs, hidden, outputs, stage.stride, projected=True)


def block(config: ResNetConfig, s: int, width: float, expand_ratio: float) -> nn.Module:
    """Return a later block of stage ``s``."""
    stage = config.stages[s]
    channels = stage.channels_at(width)
    return _block(stage.block, channels, stage.hidden_at(width, expand_ratio), channels)


def _block(
    kind: BlockKind,
    inputs: int,
    hidden: int,
    outputs: int,
    stride: int = 1,
    projected: bool = False,
) -> nn.Module:
    """Return a block; ``projected`` only matters to the kinds that always have a shortcut."""
    if kind == "bottleneck":
        return Bottleneck(inputs, hidden, outputs, stride, projected)
    if kind == "basic":
        return BasicBlock(inputs, hidden, outputs, stride, projected)
    if kind == "fused":
        return FusedBottleneck(inputs, hidden, outputs, stride, "relu")
    return InvertedBottleneck(inputs, hidden, outputs, 3, stride, False, "relu", always_expand=True)


def classifier(config: ResNetConfig, width: float) -> nn.Module:
    """Return the classifier, which takes the spatial mean of the last stage."""
    channels = config.stages[-1].channels_at(width)
    dropout, outputs = nn.Dropout(config.dropout), nn.Linear(channels, config.outputs)
    return nn.Sequential(OrderedDict(dropout=dropout, outputs=outputs))
