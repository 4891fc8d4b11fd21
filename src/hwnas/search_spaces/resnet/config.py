"""Configuration of a ResNet space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import check_counts, check_dropout, check_sides, check_stride
from hwnas.search_spaces.dense_head import DenseHead, pyramid_stages
from hwnas.search_spaces.layers import make_divisible
from hwnas.search_spaces.map_sizes import SQUARE, Size
from hwnas.search_spaces.space.choices import checked_options, checked_whole

__all__ = ["BlockKind", "ResNetConfig", "ResNetStage"]

BlockKind = Literal["bottleneck", "basic", "fused", "inverted"]

_POOL_STRIDE = 2


@dataclass(frozen=True)
class ResNetStage:
    """Sequence of residual blocks of one width.

    The first block of bottlenecks and basic blocks projects its shortcut; that of fused and
    inverted ones has none, unless its input and output have the same shape.

    Attributes:
        channels: Output channels at width multiplier 1.
        stride: Stride of the first block; 1 or 2.
        depth: Options for the number of blocks.
        expand_ratio: Options for the channels within each block, as a multiple of the stage's
            output channels: those of a bottleneck's 3x3 convolution, or those between the first and
            the last convolution of any other block.
        block: ``"bottleneck"``, of 1x1, 3x3 and 1x1 convolutions, as in ResNet-50; ``"basic"``, of
            two 3x3 convolutions, as in ResNet-18; ``"fused"``, of a 3x3 and a 1x1 convolution, as
            in EfficientNetV2 (Tan and Le, ICML 2021); or ``"inverted"``, of 1x1, depthwise 3x3 and
            1x1 convolutions, as in MobileNetV2 (Sandler et al., CVPR 2018). All with ReLU.
    """

    channels: int
    stride: int = 1
    depth: tuple[int, ...] = (1,)
    expand_ratio: tuple[float, ...] = (0.25,)
    block: BlockKind = "bottleneck"

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", checked_whole("ResNetStage.depth", self.depth))
        ratios = checked_options("ResNetStage.expand_ratio", self.expand_ratio)
        object.__setattr__(self, "expand_ratio", ratios)
        check_stride("ResNetStage.stride", self.stride)
        if self.block not in get_args(BlockKind):
            kinds = ", ".join(get_args(BlockKind))
            raise ConfigError(f"ResNetStage.block is {self.block!r}; expected one of {kinds}")
        if self.channels < 1:
            raise ConfigError(f"ResNetStage.channels is {self.channels}; expected at least 1")

    def channels_at(self, width: float) -> int:
        """Return the output channels at a width multiplier."""
        return make_divisible(self.channels * width)

    def hidden_at(self, width: float, ratio: float) -> int:
        """Return the channels within a block."""
        return make_divisible(self.channels_at(width) * ratio)


@dataclass(frozen=True)
class ResNetConfig:
    """Configuration of a `ResNetSpace`. Lists of options go from small to large.

    Attributes:
        stages: Stages from the stem to the classifier.
        resolution: Options for the longer side of the input, in pixels.
        width: Options for the width multipliers of the stem and of each stage, chosen one by one.
        in_channels: Channels of the images.
        outputs: Length of the output vector, e.g. the number of classes.
        stem_channels: Channels of the first convolution.
        stem_kernel_size: Kernel size of the first convolution; odd.
        stem_stride: Stride of the first convolution; 1, 2, or 4 (with a kernel of at least 5).
        stem_pool: Whether 3x3 max pooling of stride 2 follows.
        dropout: Dropout probability, in [0, 1), before the linear layer.
        dense_head: Head for maps, in place of the linear layer; None for a vector.
        aspect: Height and width of the input, as a ratio.
    """

    stages: tuple[ResNetStage, ...]
    resolution: tuple[int, ...] = (224,)
    width: tuple[float, ...] = (1.0,)
    in_channels: int = 3
    outputs: int = 1000
    stem_channels: int = 64
    stem_kernel_size: int = 7
    stem_stride: int = 2
    stem_pool: bool = True
    dropout: float = 0.0
    dense_head: DenseHead | None = None
    aspect: Size = SQUARE

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolution", checked_whole("resolution", self.resolution))
        object.__setattr__(self, "width", checked_options("width", self.width))
        if not self.stages:
            raise ConfigError("stages is empty; a network needs at least one ResNetStage")
        check_counts(self, "in_channels", "outputs", "stem_channels")
        if self.stem_kernel_size < 1 or self.stem_kernel_size % 2 == 0:
            raise ConfigError(f"stem_kernel_size is {self.stem_kernel_size}; expected an odd size")
        if self.stem_stride not in (1, 2, 4) or self.stem_kernel_size < self.stem_stride:
            raise ConfigError(
                f"stem_stride is {self.stem_stride} and stem_kernel_size {self.stem_kernel_size}; "
                "expected a stride of 1, 2 or 4, and a kernel at least as large, since a smaller "
                "one skips pixels"
            )
        check_dropout(self.dropout)
        check_sides(self.resolution, self.aspect, self.strides, ", leave out space.stem_pool")
        assert self.pyramid is not None  # raises if no stage is fine enough
        _check_distinct(self)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the first convolution, the max pooling (1 for none) and each stage."""
        pool = _POOL_STRIDE if self.stem_pool else 1
        return self.stem_stride, pool, *(stage.stride for stage in self.stages)

    @property
    def pyramid(self) -> tuple[int, ...]:
        """Stages whose maps the dense head uses; empty without one."""
        first, pool, *stages = self.strides
        return pyramid_stages(self.dense_head, (first * pool, *stages))

    def stem_at(self, width: float) -> int:
        """Return the channels of the first convolution at a width multiplier."""
        return make_divisible(self.stem_channels * width)


def _check_distinct(config: ResNetConfig) -> None:
    """Raise if rounding makes two options the same network, which would then have two ids."""
    stem = [config.stem_at(width) for width in config.width]
    rows = [("the stem", stem)]
    for s, stage in enumerate(config.stages):
        rows.append((f"stages[{s}]", [stage.channels_at(width) for width in config.width]))
        for width in config.width:
            hidden = [stage.hidden_at(width, ratio) for ratio in stage.expand_ratio]
            if len(set(hidden)) < len(hidden):
                raise ConfigError(
                    f"stages[{s}].expand_ratio {list(stage.expand_ratio)} gives {hidden} channels "
                    f"at width {width}; choose ratios further apart"
                )
    for place, channels in rows:
        if len(set(channels)) < len(channels):
            raise ConfigError(
                f"width {list(config.width)} gives {place} {channels} channels; choose widths "
                "further apart"
            )
