"""MobileNetV3-like networks with elastic depth, kernel, expansion, width and resolution.

The blocks are those of MobileNetV3 (Howard et al., ICCV 2019); the elastic dimensions those of
once-for-all (Cai et al., ICLR 2020) and, for width, of BigNAS (Yu et al., ECCV 2020).
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.plugin import resolve
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.layers import Activation, ConvNormAct, InvertedBottleneck, make_divisible
from hwnas.search_spaces.space import SearchSpace, StageOutline

__all__ = ["MobileNetConfig", "MobileNetSpace", "Stage", "mobilenet"]


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
            options = _checked_options(f"Stage.{name}", getattr(self, name))
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
            object.__setattr__(self, name, _checked_options(name, getattr(self, name)))
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


def _checked_options(name: str, options: Sequence[float]) -> tuple[float, ...]:
    """The options, whole numbers as integers, so that equal configurations have equal hashes."""
    sensible = all(0 < option < math.inf for option in options)
    if not options or not sensible or list(options) != sorted(set(options)):
        raise ConfigError(
            f"{name} is {list(options)}; expected positive options, increasing, none twice"
        )
    return tuple(int(option) if option == int(option) else option for option in options)


def _scaled(channels: int, width: float) -> int:
    return make_divisible(channels * width)


def _hidden(channels: int, ratio: float) -> int:
    return channels if ratio == 1 else make_divisible(channels * ratio)


def _check_distinct(config: MobileNetConfig) -> None:
    """Raise where rounding makes two options one network, which would then have two ids."""
    for width in config.width:
        channels = _scaled(config.stem_channels, width)
        for s, stage in enumerate(config.stages):
            out_channels = _scaled(stage.channels, width)
            for inputs in {channels, out_channels} if max(stage.depth) > 1 else {channels}:
                hidden = [_hidden(inputs, ratio) for ratio in stage.expand_ratio]
                if len(set(hidden)) < len(hidden):
                    raise ConfigError(
                        f"stages[{s}].expand_ratio {list(stage.expand_ratio)} gives {hidden} "
                        f"hidden channels of {inputs} at width {width}; choose ratios further apart"
                    )
            channels = out_channels
    counts = (config.stem_channels, config.head_channels, config.feature_channels)
    every = [*counts, *(stage.channels for stage in config.stages)]
    if len({tuple(_scaled(c, width) for c in every) for width in config.width}) < len(config.width):
        raise ConfigError(
            f"width {list(config.width)}: two of them round to the same channels; choose widths "
            "further apart"
        )


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


class MobileNetSpace(SearchSpace):
    """Inverted-bottleneck networks; one class for 8x8 digits, 28x28 and 224x224 photographs.

    Choices with a single option are fixed and do not appear in `choices`.

    Args:
        config: What is elastic and what is fixed; once-for-all's space at 224 pixels if None.
    """

    name = "mobilenet"

    def __init__(self, config: MobileNetConfig | None = None) -> None:
        self.config = _large((224, 224, 3)) if config is None else config

    @classmethod
    def from_preset(
        cls, preset: str, image_shape: tuple[int, int, int] = (224, 224, 3), outputs: int = 1000
    ) -> MobileNetSpace:
        """A space by name; see `mobilenet`."""
        return mobilenet(image_shape, outputs, preset=preset)

    @cached_property
    def _all_choices(self) -> dict[str, Choice]:
        config = self.config
        found = [Choice("resolution", config.resolution), Choice("width", config.width)]
        for s, stage in enumerate(config.stages):
            found.append(Choice(f"stage{s}.depth", stage.depth))
            for b in range(max(stage.depth)):
                deep_enough = tuple(d for d in stage.depth if d > b)
                when = None if b < min(stage.depth) else When(f"stage{s}.depth", deep_enough)
                found.append(Choice(f"stage{s}.block{b}.kernel_size", stage.kernel_size, when))
                found.append(Choice(f"stage{s}.block{b}.expand_ratio", stage.expand_ratio, when))
        return {choice.name: choice for choice in found}

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The elastic decisions."""
        return tuple(c for c in self._all_choices.values() if len(c.options) > 1)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The whole configuration."""
        return dataclasses.asdict(self.config)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""
        side = int(self._option(architecture.as_dict(), "resolution"))
        return self.config.in_channels, side, side

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """The stages of inverted bottlenecks."""
        values = self.check(architecture).as_dict()
        width = float(self._option(values, "width"))
        return tuple(
            StageOutline(
                make_divisible(stage.channels * width),
                stage.stride,
                tuple(
                    (
                        int(self._option(values, f"stage{s}.block{b}.kernel_size")),
                        self._option(values, f"stage{s}.block{b}.expand_ratio"),
                    )
                    for b in range(int(self._option(values, f"stage{s}.depth")))
                ),
            )
            for s, stage in enumerate(self.config.stages)
        )

    def build(self, architecture: Architecture) -> MobileNet:
        """A plain module: (N, C, H, W) float32 -> (N, outputs) float32."""
        config, values = self.config, self.check(architecture).as_dict()
        width = float(self._option(values, "width"))
        stem_channels = _scaled(config.stem_channels, width)
        stem = ConvNormAct(
            config.in_channels, stem_channels, 3, config.stem_stride, activation="hard_swish"
        )
        stages, channels = [], stem_channels
        for s, stage in enumerate(config.stages):
            blocks, out_channels = [], _scaled(stage.channels, width)
            for b in range(int(self._option(values, f"stage{s}.depth"))):
                ratio = float(self._option(values, f"stage{s}.block{b}.expand_ratio"))
                blocks.append(
                    InvertedBottleneck(
                        channels,
                        _hidden(channels, ratio),
                        out_channels,
                        int(self._option(values, f"stage{s}.block{b}.kernel_size")),
                        stage.stride if b == 0 else 1,
                        stage.squeeze_excite,
                        stage.activation,
                    )
                )
                channels = out_channels
            stages.append(nn.Sequential(*blocks))
        head_channels = _scaled(config.head_channels, width)
        features = _scaled(config.feature_channels, width)
        classifier = nn.Sequential(
            OrderedDict(
                features=nn.Linear(head_channels, features),
                activation=nn.Hardswish(inplace=True),
                dropout=nn.Dropout(config.dropout),
                outputs=nn.Linear(features, config.outputs),
            )
        )
        head = ConvNormAct(channels, head_channels, activation="hard_swish")
        return MobileNet(stem, stages, head, classifier)

    def _option(self, values: Mapping[str, Option], name: str) -> float:
        value = values.get(name, self._all_choices[name].options[0])
        assert not isinstance(value, str)
        return value


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


PRESETS = {
    "tiny": _tiny,
    "small": _small,
    "large": _large,
    "mobilenet-v3-large": _mobilenet_v3_large,
}


def mobilenet(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    stages: tuple[Stage, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    width: tuple[float, ...] | None = None,
    stem_channels: int | None = None,
    stem_stride: int | None = None,
    head_channels: int | None = None,
    feature_channels: int | None = None,
    dropout: float | None = None,
) -> MobileNetSpace:
    """The space of a recipe's ``[space] name = "mobilenet"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"``
            (once-for-all's space) or ``"mobilenet-v3-large"`` (that one network); chosen by the
            size of the images if None.
        stages: As in `MobileNetConfig`, in place of the preset's; so are all that follow.
        resolution: Options for the input's height and width, in pixels.
        width: Options for the width multiplier.
        stem_channels: Channels of the first convolution.
        stem_stride: Stride of the first convolution.
        head_channels: Channels of the last convolution.
        feature_channels: Length of the vector before the last linear layer.
        dropout: Probability before the last linear layer.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    side = max(image_shape[:2])
    automatic = "tiny" if side <= 16 else "small" if side <= 96 else "large"
    config = resolve("preset of space mobilenet", preset or automatic, PRESETS)(image_shape)
    overrides = {
        "stages": stages,
        "resolution": resolution,
        "width": width,
        "stem_channels": stem_channels,
        "stem_stride": stem_stride,
        "head_channels": head_channels,
        "feature_channels": feature_channels,
        "dropout": dropout,
    }
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return MobileNetSpace(
        dataclasses.replace(config, in_channels=image_shape[2], outputs=outputs, **given)
    )
