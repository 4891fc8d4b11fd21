"""Configuration of a space of convolution and attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import (
    check_counts,
    check_dropout,
    check_expansion,
    check_sides,
    check_stride,
)
from hwnas.search_spaces.dense_head import DenseHead, pyramid_stages
from hwnas.search_spaces.layers import hidden_channels, make_divisible, scaled_channels
from hwnas.search_spaces.map_sizes import SQUARE, Size
from hwnas.search_spaces.space.choices import checked_options, checked_whole

__all__ = ["BlockKind", "Fused", "HybridConfig", "HybridStage", "heads_of"]

BlockKind = Literal["convolution", "attention", "both"]
Fused = Literal["none", "first", "all"]


@dataclass(frozen=True)
class HybridStage:
    """Sequence of blocks of one width; the first changes the size, and is a convolution.

    Attributes:
        channels: Output channels at width multiplier 1.
        stride: Stride of the first block; 1 or 2.
        depth: Options for the number of blocks, including the first.
        blocks: Options for the kind of each block after the first, from small to large. A block of
            kind ``"both"`` holds the weights of the other kinds, so it is the last of several.
        expand_ratio: Options for hidden channels of convolutions, as a multiple of their input's.
        mlp_ratio: Options for hidden channels of the perceptron after an attention, as a multiple
            of its channels.
        fused: Blocks whose convolution is fused: ``"none"``, ``"first"`` or ``"all"``. A fused one
            is a full 3x3 and a pointwise convolution, in place of a pointwise, a depthwise 3x3 and
            a pointwise one.
        attention_stride: 1 or 2; with 2, attention works on a quarter of the pixels.
    """

    channels: int
    stride: int = 2
    depth: tuple[int, ...] = (1,)
    blocks: tuple[BlockKind, ...] = ("convolution",)
    expand_ratio: tuple[float, ...] = (4,)
    mlp_ratio: tuple[float, ...] = (4,)
    fused: Fused = "none"
    attention_stride: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", checked_whole("HybridStage.depth", self.depth))
        for name in ("expand_ratio", "mlp_ratio"):
            options = checked_options(f"HybridStage.{name}", getattr(self, name))
            object.__setattr__(self, name, options)
        object.__setattr__(self, "blocks", tuple(self.blocks))
        if self.channels < 1:
            raise ConfigError(f"HybridStage.channels is {self.channels}; expected at least 1")
        for name in ("stride", "attention_stride"):
            check_stride(f"HybridStage.{name}", getattr(self, name))
        if self.fused not in get_args(Fused):
            raise ConfigError(f"HybridStage.fused is {self.fused!r}; expected none, first or all")
        kinds = get_args(BlockKind)
        if not self.blocks or len(set(self.blocks)) < len(self.blocks):
            raise ConfigError(
                f"HybridStage.blocks is {list(self.blocks)}; expected some of {', '.join(kinds)}"
            )
        if set(self.blocks) - set(kinds):
            raise ConfigError(
                f"HybridStage.blocks is {list(self.blocks)}; expected only {', '.join(kinds)}"
            )
        if len(self.blocks) > 1 and self.blocks[-1] != "both":
            raise ConfigError(
                f"HybridStage.blocks is {list(self.blocks)}; where there are several, the last has "
                'to be "both", which holds the weights of all'
            )

    def kinds_with(self, part: BlockKind) -> tuple[BlockKind, ...]:
        """Return the options for blocks that contain a convolution, or an attention."""
        return tuple(kind for kind in self.blocks if kind in (part, "both"))

    @property
    def ratios(self) -> Mapping[str, tuple[BlockKind, ...]]:
        """Names of the ratios chosen for blocks after the first, with the kinds that have them."""
        found = {
            "expand_ratio": self.kinds_with("convolution"),
            "mlp_ratio": self.kinds_with("attention"),
        }
        return {name: kinds for name, kinds in found.items() if kinds}


@dataclass(frozen=True)
class HybridConfig:
    """Configuration of a `HybridSpace`. Lists of options go from small to large.

    Attributes:
        stages: Stages from the stem to the head.
        resolution: Options for the longer side of the input, in pixels.
        width: Options for the width multiplier of all channels.
        head_width: Channels of an attention head. Attention works on half the channels of a stage.
        in_channels: Channels of the images.
        outputs: Length of the output vector, e.g. the number of classes.
        stem_channels: Channels of the first convolution.
        stem_stride: Stride of the first convolution; 1 or 2.
        head_channels: Channels of the last convolution.
        feature_channels: Length of the vector before the last linear layer.
        dropout: Dropout probability, in [0, 1), before the last linear layer.
        dense_head: Head for maps, in place of all layers after the stages; None for a vector.
        aspect: Height and width of the input, as a ratio.
    """

    stages: tuple[HybridStage, ...]
    resolution: tuple[int, ...] = (224,)
    width: tuple[float, ...] = (1.0,)
    head_width: int = 16
    in_channels: int = 3
    outputs: int = 1000
    stem_channels: int = 16
    stem_stride: int = 2
    head_channels: int = 1536
    feature_channels: int = 1600
    dropout: float = 0.0
    dense_head: DenseHead | None = None
    aspect: Size = SQUARE

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolution", checked_whole("resolution", self.resolution))
        object.__setattr__(self, "width", checked_options("width", self.width))
        if not self.stages:
            raise ConfigError("stages is empty; a network needs at least one HybridStage")
        check_stride("stem_stride", self.stem_stride)
        check_counts(self, "head_width", "in_channels", "outputs")
        check_counts(self, "stem_channels", "head_channels", "feature_channels")
        check_dropout(self.dropout)
        check_sides(self.resolution, self.aspect, self.strides)
        assert self.pyramid is not None  # raises if no stage is fine enough
        _check_heads(self)
        _check_distinct(self)
        _check_expansions(self)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the first convolution and of each stage."""
        return self.stem_stride, *(stage.stride for stage in self.stages)

    @property
    def pyramid(self) -> tuple[int, ...]:
        """Stages whose maps the dense head uses; empty without one."""
        return pyramid_stages(self.dense_head, self.strides)


def heads_of(channels: int, head_width: int) -> int:
    """Return the number of whole attention heads in half the channels of a stage, at least 1."""
    return max(1, channels // 2 // head_width)


def _check_heads(config: HybridConfig) -> None:
    for s, stage in enumerate(config.stages):
        if stage.kinds_with("attention") and stage.channels % (2 * config.head_width):
            raise ConfigError(
                f"heads of {config.head_width} channels do not divide half the {stage.channels} "
                f"channels of stages[{s}]; choose multiples of {2 * config.head_width}, or another "
                "head_width"
            )


def _check_expansions(config: HybridConfig) -> None:
    """Raise if shared weights would lack an expansion layer."""
    before = config.stem_channels
    for s, stage in enumerate(config.stages):
        first = [] if stage.fused in ("first", "all") else [before]
        later = [stage.channels] if max(stage.depth) > 1 and stage.kinds_with("convolution") else []
        for channels in first + (later if stage.fused != "all" else []):
            inputs = [scaled_channels(channels, width) for width in config.width]
            check_expansion(f"stages[{s}]", inputs, stage.expand_ratio)
        before = stage.channels


def _check_distinct(config: HybridConfig) -> None:
    """Raise if rounding makes two options the same network, which would then have two ids."""
    for width in config.width:
        channels = scaled_channels(config.stem_channels, width)
        for s, stage in enumerate(config.stages):
            outputs = scaled_channels(stage.channels, width)
            inputs = {channels, outputs} if max(stage.depth) > 1 else {channels}
            found = [[hidden_channels(c, r) for r in stage.expand_ratio] for c in inputs]
            found.append([make_divisible(outputs * r) for r in stage.mlp_ratio])
            if any(len(set(hidden)) < len(hidden) for hidden in found):
                raise ConfigError(
                    f"stages[{s}]: at width {width} two ratios give equal hidden channels, "
                    f"{found}; choose expand_ratio and mlp_ratio further apart"
                )
            channels = outputs
    every = [config.stem_channels, *(stage.channels for stage in config.stages)]
    scaled = {tuple(scaled_channels(c, width) for c in every) for width in config.width}
    if len(scaled) < len(config.width):
        raise ConfigError(
            f"width {list(config.width)}: two of them round to the same channels; choose widths "
            "further apart"
        )
