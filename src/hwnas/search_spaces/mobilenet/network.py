"""Modules of a `MobileNetSpace`, built from chosen options."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers import (
    Activation,
    ConvNormAct,
    InvertedBottleneck,
    hidden_channels,
    scaled_channels,
)
from hwnas.search_spaces.layers.branches import BranchedDepthwise
from hwnas.search_spaces.layers.deformable import DeformableDepthwise
from hwnas.search_spaces.mobilenet.config import MobileNetConfig
from hwnas.search_spaces.mobilenet.operators import block_shape

__all__ = ["MobileNet", "block", "classifier", "head", "stem"]


class MobileNet(nn.Module):
    """Network of a `MobileNetSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(
        self,
        stem: nn.Module,
        stages: list[nn.Sequential],
        head: nn.Module,
        classifier: nn.Module,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.head = head
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return outputs (N, outputs) of images (N, C, H, W)."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        outputs: Tensor = self.classifier(self.head(x).mean((2, 3)))
        return outputs


def stem(config: MobileNetConfig, width: float) -> ConvNormAct:
    """Return the first convolution."""
    channels = scaled_channels(config.stem_channels, width)
    return ConvNormAct(
        config.in_channels, channels, 3, config.stem_stride, activation=config.activation
    )


def block(
    config: MobileNetConfig,
    s: int,
    b: int,
    width: float,
    kernel_size: int = 3,
    expand_ratio: float = 1,
    operator: str | None = None,
) -> nn.Module:
    """Return block ``b`` of stage ``s``, given by its sizes or by an operator's name."""
    stage = config.stages[s]
    outputs, before = stage.channels, config.stages[s - 1].channels if s else config.stem_channels
    inputs = scaled_channels(outputs if b else before, width)
    outputs, stride = scaled_channels(outputs, width), 1 if b else stage.stride
    gated, activation = stage.squeeze_excite, stage.activation
    if operator is not None:
        return _operator(operator, inputs, outputs, stride, gated, activation)
    hidden = hidden_channels(inputs, expand_ratio)
    return InvertedBottleneck(inputs, hidden, outputs, kernel_size, stride, gated, activation)


def _operator(
    name: str, inputs: int, outputs: int, stride: int, gated: bool, activation: Activation
) -> nn.Module:
    """Return a block by its name; if it is skipped, the identity or a pointwise convolution."""
    shape = block_shape(name)
    if shape is not None:
        hidden = inputs * shape.expand_ratio
        sizes = (inputs, hidden, outputs, shape.kernel_size, stride)
        depthwise: nn.Module | None = None
        if shape.branches:
            depthwise = BranchedDepthwise(hidden, shape.kernel_size, stride, activation)
        elif shape.deformable:
            depthwise = DeformableDepthwise(hidden, stride, activation)
        return InvertedBottleneck(
            *sizes, gated, activation, shape.groups, always_expand=True, depthwise=depthwise
        )
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    # Named like the expansion of a block, because a supernet shares its first channels with it.
    expand = ConvNormAct(inputs, outputs, 1, stride, activation=activation)
    return nn.Sequential(OrderedDict(layers=nn.Sequential(OrderedDict(expand=expand))))


def head(config: MobileNetConfig, width: float) -> ConvNormAct:
    """Return the last convolution."""
    channels = scaled_channels(config.stages[-1].channels, width)
    features = scaled_channels(config.head_channels, width)
    return ConvNormAct(channels, features, activation=config.activation)


def classifier(config: MobileNetConfig, width: float) -> nn.Module:
    """Return the classifier, which takes the spatial mean of the last feature map."""
    channels = scaled_channels(config.head_channels, width)
    parts: dict[str, nn.Module] = {}
    if config.feature_channels:
        features = scaled_channels(config.feature_channels, width)
        parts["features"] = nn.Linear(channels, features, bias=config.feature_bias)
        parts["activation"] = nn.Hardswish(inplace=True)
        channels = features
    parts["dropout"] = nn.Dropout(config.dropout)
    parts["outputs"] = nn.Linear(channels, config.outputs)
    return nn.Sequential(OrderedDict(parts))
