"""Modules of a `HybridSpace`: stem, blocks of convolution and attention, head."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.hybrid.config import BlockKind, HybridConfig, HybridStage, heads_of
from hwnas.search_spaces.layers import (
    Context,
    ConvNormAct,
    FusedBottleneck,
    InvertedBottleneck,
    hidden_channels,
    scaled_channels,
)

__all__ = ["Hybrid", "attention", "block", "convolution", "head", "stem"]


class Hybrid(nn.Module):
    """Network of a `HybridSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, stem: nn.Module, stages: list[nn.Sequential], head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Return outputs (N, outputs) of images (N, C, H, W)."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        outputs: Tensor = self.head(x)
        return outputs


class PooledHead(nn.Module):
    """Convolution, spatial mean, two linear layers: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, conv: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (N, outputs) of a feature map x."""
        outputs: Tensor = self.classifier(self.conv(x).mean((2, 3)))
        return outputs


def stem(config: HybridConfig, width: float) -> ConvNormAct:
    """Return the first convolution."""
    channels = scaled_channels(config.stem_channels, width)
    return ConvNormAct(config.in_channels, channels, 3, config.stem_stride, activation="hard_swish")


def convolution(
    stage: HybridStage, inputs: int, outputs: int, ratio: float, first: bool
) -> nn.Module:
    """Return a block's convolution: (N, inputs, H, W) -> (N, outputs, H / stride, W / stride)."""
    hidden, stride = hidden_channels(inputs, ratio), stage.stride if first else 1
    if stage.fused == "all" or (stage.fused == "first" and first):
        return FusedBottleneck(inputs, hidden, outputs, stride)
    return InvertedBottleneck(inputs, hidden, outputs, 3, stride, False, "hard_swish")


def attention(config: HybridConfig, stage: HybridStage, channels: int) -> Context:
    """Return the attention of a block."""
    heads = heads_of(channels, config.head_width)
    return Context.attention(channels, heads, config.head_width, stage.attention_stride)


def block(
    config: HybridConfig,
    s: int,
    b: int,
    width: float,
    kind: BlockKind = "convolution",
    expand_ratio: float | None = None,
    mlp_ratio: float | None = None,
) -> nn.Sequential:
    """Return block ``b`` of stage ``s``; the first is a convolution of the previous stage's map."""
    stage = config.stages[s]
    outputs, before = stage.channels, config.stages[s - 1].channels if s else config.stem_channels
    inputs = scaled_channels(outputs if b else before, width)
    outputs = scaled_channels(outputs, width)
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    if kind in ("attention", "both"):
        assert mlp_ratio is not None
        parts["attention"] = attention(config, stage, outputs)
        parts["perceptron"] = Context.perceptron(outputs, mlp_ratio)
    if kind in ("convolution", "both"):
        assert expand_ratio is not None
        parts["convolution"] = convolution(stage, inputs, outputs, expand_ratio, b == 0)
    return nn.Sequential(parts)


def head(config: HybridConfig, width: float) -> PooledHead:
    """Return the head, which maps the last stage's feature map to the outputs."""
    channels, inner, features = (
        scaled_channels(count, width)
        for count in (
            config.stages[-1].channels,
            config.head_channels,
            config.feature_channels,
        )
    )
    classifier = OrderedDict[str, nn.Module](
        features=nn.Linear(inner, features, bias=False),
        norm=nn.LayerNorm(features),
        activation=nn.Hardswish(inplace=True),
        dropout=nn.Dropout(config.dropout),
        outputs=nn.Linear(features, config.outputs),
    )
    conv = ConvNormAct(channels, inner, activation="hard_swish")
    return PooledHead(conv, nn.Sequential(classifier))
