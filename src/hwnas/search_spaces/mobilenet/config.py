"""Configuration of a MobileNet space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import (
    OperatorWeights,
    check_counts,
    check_dropout,
    check_expansion,
    check_sides,
    check_stride,
    checked_weights,
)
from hwnas.search_spaces.dense_head import DenseHead, pyramid_stages
from hwnas.search_spaces.layers import Activation, hidden_channels, scaled_channels
from hwnas.search_spaces.map_sizes import SQUARE, Size
from hwnas.search_spaces.mobilenet.operators import check_fit, checked_operators
from hwnas.search_spaces.space.choices import Option, checked_options, checked_whole

__all__ = ["MobileNetConfig", "Stage"]


@dataclass(frozen=True)
class Stage:
    """Sequence of inverted bottlenecks of one width.

    Attributes:
        channels: Output channels at width multiplier 1.
        stride: Stride of the first block; 1 or 2.
        depth: Options for the number of blocks.
        kernel_size: Options for each block's depthwise kernel; odd.
        expand_ratio: Options for each block's hidden channels, as a multiple of its input channels.
        squeeze_excite: Whether the blocks have a channel gate.
        activation: ``"relu"``, ``"relu6"`` or ``"hard_swish"``.
        operators: Options for each block as a whole, by name, in place of ``kernel_size`` and
            ``expand_ratio``: ``"k5_e6"`` has a kernel of 5 and an expansion of 6, ``"k3_e1_g2"``
            has pointwise convolutions in two groups, ``"k13_e3_b"`` a depthwise convolution with
            dilated branches in training (`BranchedDepthwise`), ``"k3_e3_d"`` a deformable one
            (`DeformableConv2d`), ``"skip"`` is no block. The last has to be the largest.
    """

    channels: int
    stride: int = 1
    depth: tuple[int, ...] = (1,)
    kernel_size: tuple[int, ...] = (3,)
    expand_ratio: tuple[float, ...] = (6,)
    squeeze_excite: bool = False
    activation: Activation = "hard_swish"
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("depth", "kernel_size"):
            object.__setattr__(self, name, checked_whole(f"Stage.{name}", getattr(self, name)))
        ratios = checked_options("Stage.expand_ratio", self.expand_ratio)
        object.__setattr__(self, "expand_ratio", ratios)
        _check_activation("Stage.activation", self.activation)
        if any(size % 2 == 0 for size in self.kernel_size):
            raise ConfigError(f"Stage.kernel_size is {self.kernel_size}; kernels must be odd")
        check_stride("Stage.stride", self.stride)
        if self.channels < 1:
            raise ConfigError(f"Stage.channels is {self.channels}; expected at least 1")
        object.__setattr__(self, "operators", checked_operators(self.operators))

    @property
    def decisions(self) -> Mapping[str, tuple[Option, ...]]:
        """Options of each choice of a block, by name."""
        if self.operators:
            return {"operator": self.operators}
        return {"kernel_size": self.kernel_size, "expand_ratio": self.expand_ratio}


@dataclass(frozen=True)
class MobileNetConfig:
    """Configuration of a `MobileNetSpace`. Lists of options go from small to large.

    Attributes:
        stages: Stages from the stem to the head.
        resolution: Options for the longer side of the input, in pixels.
        width: Options for the width multiplier of all channels.
        in_channels: Channels of the images.
        outputs: Length of the output vector, e.g. the number of classes.
        stem_channels: Channels of the first convolution.
        stem_stride: Stride of the first convolution; 1 or 2.
        head_channels: Channels of the last convolution.
        feature_channels: Length of the vector before the last linear layer; 0 if that layer follows
            the last convolution directly.
        dropout: Dropout probability, in [0, 1), before the last linear layer.
        activation: Activation after the first and after the last convolution.
        feature_bias: Whether the layer of ``feature_channels`` has a bias.
        dense_head: Head for maps, in place of all layers after the stages; None for a vector.
        aspect: Height and width of the input, as a ratio.
        operator_weights: ``"own"`` if each of the ``operators`` of a block has weights of its own
            in a supernet, ``"shared"`` if those of the last contain those of all others.
    """

    stages: tuple[Stage, ...]
    resolution: tuple[int, ...] = (224,)
    width: tuple[float, ...] = (1.0,)
    in_channels: int = 3
    outputs: int = 1000
    stem_channels: int = 16
    stem_stride: int = 2
    head_channels: int = 960
    feature_channels: int = 1280
    dropout: float = 0.0
    activation: Activation = "hard_swish"
    feature_bias: bool = True
    dense_head: DenseHead | None = None
    aspect: Size = SQUARE
    operator_weights: OperatorWeights = "shared"

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolution", checked_whole("resolution", self.resolution))
        object.__setattr__(self, "width", checked_options("width", self.width))
        if not self.stages:
            raise ConfigError("stages is empty; a network needs at least one Stage")
        check_stride("stem_stride", self.stem_stride)
        check_counts(self, "in_channels", "outputs", "stem_channels", "head_channels")
        if self.feature_channels < 0:
            raise ConfigError(f"feature_channels is {self.feature_channels}; expected at least 0")
        _check_activation("activation", self.activation)
        check_dropout(self.dropout)
        checked_weights(self.operator_weights)
        check_sides(self.resolution, self.aspect, self.strides)
        assert self.pyramid is not None  # raises if no stage is fine enough
        _check_distinct(self)
        _check_operators(self)
        _check_expansions(self)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the first convolution and of each stage."""
        return self.stem_stride, *(stage.stride for stage in self.stages)

    @property
    def pyramid(self) -> tuple[int, ...]:
        """Stages whose maps the dense head uses; empty without one."""
        return pyramid_stages(self.dense_head, self.strides)


def _check_activation(name: str, activation: str) -> None:
    if activation not in ("relu", "relu6", "hard_swish"):
        raise ConfigError(f"{name} is {activation!r}; expected relu, relu6 or hard_swish")


def _check_distinct(config: MobileNetConfig) -> None:
    """Raise if rounding makes two options the same network, which would then have two ids."""
    for width in config.width:
        channels = scaled_channels(config.stem_channels, width)
        for s, stage in enumerate(config.stages):
            out_channels = scaled_channels(stage.channels, width)
            for inputs in {channels, out_channels} if max(stage.depth) > 1 else {channels}:
                hidden = [hidden_channels(inputs, ratio) for ratio in stage.expand_ratio]
                if len(set(hidden)) < len(hidden):
                    raise ConfigError(
                        f"stages[{s}].expand_ratio {list(stage.expand_ratio)} gives {hidden} "
                        f"hidden channels of {inputs} at width {width}; choose ratios further apart"
                    )
            channels = out_channels
    counts = (config.stem_channels, config.head_channels, config.feature_channels)
    every = [*counts, *(stage.channels for stage in config.stages)]
    if len({tuple(scaled_channels(c, width) for c in every) for width in config.width}) < len(
        config.width
    ):
        raise ConfigError(
            f"width {list(config.width)}: two of them round to the same channels; choose widths "
            "further apart"
        )


def _check_expansions(config: MobileNetConfig) -> None:
    """Raise if shared weights would lack an expansion layer."""
    before = config.stem_channels
    for s, stage in enumerate(config.stages):
        for channels in () if stage.operators else (before, stage.channels)[: max(stage.depth)]:
            inputs = [scaled_channels(channels, width) for width in config.width]
            check_expansion(f"stages[{s}]", inputs, stage.expand_ratio)
        before = stage.channels


def _check_operators(config: MobileNetConfig) -> None:
    """Raise if the blocks of a stage do not fit its channels at some width."""
    own = config.operator_weights == "own"
    if own and not any(stage.operators for stage in config.stages):
        raise ConfigError(
            "operator_weights is 'own', but the blocks are given by kernel_size and expand_ratio, "
            "which share weights; give operators for the stages, or a preset such as fbnet"
        )
    for width in config.width:
        channels = scaled_channels(config.stem_channels, width)
        for s, stage in enumerate(config.stages):
            out_channels = scaled_channels(stage.channels, width)
            check_fit(f"stages[{s}]", stage.operators, channels, out_channels, stage.stride, own)
            if max(stage.depth) > 1:
                check_fit(f"stages[{s}]", stage.operators, out_channels, out_channels, 1, own)
            channels = out_channels
