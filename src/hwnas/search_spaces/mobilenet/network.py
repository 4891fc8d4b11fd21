"""MobileNets as modules, put together of what was chosen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

from hwnas.search_spaces.choices import Option
from hwnas.search_spaces.layers import (
    Activation,
    ConvNormAct,
    InvertedBottleneck,
    hidden_channels,
    scaled_channels,
)
from hwnas.search_spaces.mobilenet.config import MobileNetConfig, Stage
from hwnas.search_spaces.mobilenet.operators import block_shape

__all__ = ["MobileNet", "build_network"]

Values = Mapping[str, Option]
"""For every choice, with one option or several, the option; any where it has no effect."""


class MobileNet(nn.Module):
    """One network of a `MobileNetSpace`: (N, C, H, W) -> (N, outputs)."""

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
        """Outputs (N, outputs) of images (N, C, H, W)."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        outputs: Tensor = self.classifier(self.head(x).mean((2, 3)))
        return outputs


def build_network(config: MobileNetConfig, values: Values) -> MobileNet:
    """A plain, freshly initialised network."""
    width = float(values["width"])
    channels = scaled_channels(config.stem_channels, width)
    stem = ConvNormAct(
        config.in_channels, channels, 3, config.stem_stride, activation=config.activation
    )
    stages = []
    for s, stage in enumerate(config.stages):
        blocks, out_channels = [], scaled_channels(stage.channels, width)
        for b in range(int(values[f"stage{s}.depth"])):
            stride = stage.stride if b == 0 else 1
            blocks.append(
                _block(stage, f"stage{s}.block{b}", values, channels, out_channels, stride)
            )
            channels = out_channels
        stages.append(nn.Sequential(*blocks))
    head_channels = scaled_channels(config.head_channels, width)
    head = ConvNormAct(channels, head_channels, activation=config.activation)
    return MobileNet(stem, stages, head, _classifier(config, head_channels, width))


def _block(
    stage: Stage, place: str, values: Values, inputs: int, outputs: int, stride: int
) -> nn.Module:
    if stage.operators:
        name = str(values[f"{place}.operator"])
        return _operator(name, inputs, outputs, stride, stage.squeeze_excite, stage.activation)
    return InvertedBottleneck(
        inputs,
        hidden_channels(inputs, float(values[f"{place}.expand_ratio"])),
        outputs,
        int(values[f"{place}.kernel_size"]),
        stride,
        stage.squeeze_excite,
        stage.activation,
    )


def _operator(
    name: str, inputs: int, outputs: int, stride: int, gated: bool, activation: Activation
) -> nn.Module:
    """A block by its name, or what stands in its place where it is skipped."""
    shape = block_shape(name)
    if shape is not None:
        hidden = inputs * shape.expand_ratio
        sizes = (inputs, hidden, outputs, shape.kernel_size, stride)
        return InvertedBottleneck(*sizes, gated, activation, shape.groups, always_expand=True)
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    # Named as the expansion of a block, whose first channels it shares in a supernet.
    expand = ConvNormAct(inputs, outputs, 1, stride, activation=activation)
    return nn.Sequential(OrderedDict(layers=nn.Sequential(OrderedDict(expand=expand))))


def _classifier(config: MobileNetConfig, channels: int, width: float) -> nn.Module:
    parts: dict[str, nn.Module] = {}
    if config.feature_channels:
        features = scaled_channels(config.feature_channels, width)
        parts["features"] = nn.Linear(channels, features, bias=config.feature_bias)
        parts["activation"] = nn.Hardswish(inplace=True)
        channels = features
    parts["dropout"] = nn.Dropout(config.dropout)
    parts["outputs"] = nn.Linear(channels, config.outputs)
    return nn.Sequential(OrderedDict(parts))
