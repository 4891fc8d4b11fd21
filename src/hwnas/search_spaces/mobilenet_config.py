"""What is elastic and what is fixed in a MobileNet space, and presets by size of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers import Activation, make_divisible
from hwnas.search_spaces.options import increasing_options

__all__ = ["PRESETS", "MobileNetConfig", "Stage", "hidden_channels", "scaled_channels"]


@dataclass(frozen=True)
class Stage:
    """A row of inverted bottlenecks of one width.

    Attributes:
        channels: Output channels at width multiplier 1.
        stride: Of the first block; 1 or 2.
        depth: Options for the number of blocks.
        kernel_size: Options for each block's depthwise kernel; odd.
        expand_ratio: Options for each block's hidden channels, as a multiple of its input channels.
        squeeze_excite: Whether the blocks have a channel gate.
        activation: ``"relu"`` or ``"hard_swish"``.
    """

    channels: int
    stride: int = 1
    depth: tuple[int, ...] = (1,)
    kernel_size: tuple[int, ...] = (3,)
    expand_ratio: tuple[float, ...] = (6,)
    squeeze_excite: bool = False
    activation: Activation = "hard_swish"

    def __post_init__(self) -> None:
        for name in ("depth", "kernel_size", "expand_ratio"):
            options = increasing_options(f"Stage.{name}", getattr(self, name))
            object.__setattr__(self, name, options)
        if self.activation not in ("relu", "hard_swish"):
            raise ConfigError(f"Stage.activation is {self.activation!r}; expected relu, hard_swish")
        if any(size % 2 == 0 for size in self.kernel_size):
            raise ConfigError(f"Stage.kernel_size is {self.kernel_size}; kernels must be odd")
        if self.stride not in (1, 2):
            raise ConfigError(f"Stage.stride is {self.stride}; expected 1 or 2")
        if self.channels < 1:
            raise ConfigError(f"Stage.channels is {self.channels}; expected at least 1")


@dataclass(frozen=True)
class MobileNetConfig:
    """All that defines a `MobileNetSpace`. Lists of options go from small to large.

    Attributes:
        stages: From the stem to the head.
        resolution: Options for height and width of the input, in pixels.
        width: Options for the width multiplier of all channels.
        in_channels: Channels of the images.
        outputs: Length of the output vector, e.g. the number of classes.
        stem_channels: Channels of the first convolution.
        stem_stride: Stride of the first convolution; 1 or 2.
        head_channels: Channels of the last convolution.
        feature_channels: Length of the vector before the last linear layer.
        dropout: Probability, in [0, 1), before the last linear layer.
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

    def __post_init__(self) -> None:
        for name in ("resolution", "width"):
            object.__setattr__(self, name, increasing_options(name, getattr(self, name)))
        if not self.stages:
            raise ConfigError("stages is empty; a network needs at least one Stage")
        if self.stem_stride not in (1, 2):
            raise ConfigError(f"stem_stride is {self.stem_stride}; expected 1 or 2")
        for name in (
            "in_channels",
            "outputs",
            "stem_channels",
            "head_channels",
            "feature_channels",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; expected a probability in [0, 1)")
        total = self.stem_stride * math.prod(stage.stride for stage in self.stages)
        if min(self.resolution) < total:
            raise ConfigError(
                f"images of {min(self.resolution)} pixels are smaller than the space can take: its "
                f"strides multiply to {total}. Lower space.stem_stride or the strides of the "
                f"stages, or set space.resolution to at least {total}"
            )
        _check_distinct(self)


def scaled_channels(channels: int, width: float) -> int:
    """Channels at a width multiplier, rounded as MobileNet rounds them."""
    return make_divisible(channels * width)


def hidden_channels(channels: int, ratio: float) -> int:
    """Channels of a depthwise convolution whose block takes ``channels``."""
    return channels if ratio == 1 else make_divisible(channels * ratio)


def _check_distinct(config: MobileNetConfig) -> None:
    """Raise where rounding makes two options one network, which would then have two ids."""
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


def _resolutions(image_shape: tuple[int, int, int], *sevenths: int) -> tuple[int, ...]:
    side = max(image_shape[:2])
    return tuple(sorted({max(1, side * part // 7) for part in sevenths}))


def _tiny(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    side = max(image_shape[:2])
    kernels, ratios = (3, 5), (3, 4, 6)
    return MobileNetConfig(
        stages=(
            Stage(16, 1, (1, 2), kernels, ratios, activation="relu"),
            Stage(24, 2, (1, 2, 3), kernels, ratios),
            Stage(40, 2, (1, 2, 3), kernels, ratios, squeeze_excite=True),
        ),
        resolution=tuple(sorted({side, side * 3 // 2, side * 2})),
        width=(0.5, 1.0),
        stem_channels=16,
        stem_stride=1,
        head_channels=120,
        feature_channels=160,
    )


def _small(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    kernels, ratios = (3, 5, 7), (3, 4, 6)
    return MobileNetConfig(
        stages=(
            Stage(16, 1, (1, 2), kernels, ratios, activation="relu"),
            Stage(24, 2, (1, 2, 3, 4), kernels, ratios, activation="relu"),
            Stage(40, 2, (1, 2, 3, 4), kernels, ratios, squeeze_excite=True),
            Stage(80, 1, (1, 2, 3, 4), kernels, ratios, squeeze_excite=True),
        ),
        resolution=_resolutions(image_shape, 5, 6, 7),
        width=(0.5, 0.75, 1.0),
        stem_channels=16,
        stem_stride=1,
        head_channels=240,
        feature_channels=320,
    )


def _large(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    depths, kernels, ratios = (2, 3, 4), (3, 5, 7), (3, 4, 6)
    return MobileNetConfig(
        stages=(
            Stage(16, 1, (1,), (3,), (1,), activation="relu"),
            Stage(24, 2, depths, kernels, ratios, activation="relu"),
            Stage(40, 2, depths, kernels, ratios, squeeze_excite=True, activation="relu"),
            Stage(80, 2, depths, kernels, ratios),
            Stage(112, 1, depths, kernels, ratios, squeeze_excite=True),
            Stage(160, 2, depths, kernels, ratios, squeeze_excite=True),
        ),
        resolution=_resolutions(image_shape, 4, 5, 6, 7),
        width=(1.0,),
        dropout=0.1,
    )


def _mobilenet_v3_large(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    """Table 1 of the paper; expansions 200 and 184 of 80 channels are the ratios 2.5 and 2.3."""
    return MobileNetConfig(
        stages=(
            Stage(16, 1, expand_ratio=(1,), activation="relu"),
            Stage(24, 2, expand_ratio=(4,), activation="relu"),
            Stage(24, 1, expand_ratio=(3,), activation="relu"),
            Stage(40, 2, (1,), (5,), (3,), squeeze_excite=True, activation="relu"),
            Stage(40, 1, (2,), (5,), (3,), squeeze_excite=True, activation="relu"),
            Stage(80, 2),
            Stage(80, 1, expand_ratio=(2.5,)),
            Stage(80, 1, (2,), expand_ratio=(2.3,)),
            Stage(112, 1, (2,), squeeze_excite=True),
            Stage(160, 2, (3,), (5,), (6,), squeeze_excite=True),
        ),
        resolution=_resolutions(image_shape, 7),
        dropout=0.2,
    )


PRESETS: Mapping[str, Callable[[tuple[int, int, int]], MobileNetConfig]] = {
    "tiny": _tiny,
    "small": _small,
    "large": _large,
    "mobilenet-v3-large": _mobilenet_v3_large,
}
