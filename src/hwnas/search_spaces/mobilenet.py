"""MobileNetV3-like networks with elastic depth, kernel, expansion, width and resolution.

The blocks are those of MobileNetV3 (Howard et al., ICCV 2019); the elastic dimensions those of
once-for-all (Cai et al., ICLR 2020) and, for width, of BigNAS (Yu et al., ECCV 2020).
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from hwnas.plugin import resolve
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.layers import ConvNormAct, InvertedBottleneck
from hwnas.search_spaces.mobilenet_config import (
    PRESETS,
    MobileNetConfig,
    Stage,
    hidden_channels,
    scaled_channels,
)
from hwnas.search_spaces.mobilenet_steps import chosen_parts, depth_of, part_table
from hwnas.search_spaces.space import SearchSpace, StageOutline
from hwnas.search_spaces.steps import PartTable

__all__ = ["MobileNetSpace", "mobilenet"]


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
        self.config = PRESETS["large"]((224, 224, 3)) if config is None else config

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
                scaled_channels(stage.channels, width),
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
        stem_channels = scaled_channels(config.stem_channels, width)
        stem = ConvNormAct(
            config.in_channels, stem_channels, 3, config.stem_stride, activation="hard_swish"
        )
        stages, channels = [], stem_channels
        for s, stage in enumerate(config.stages):
            blocks, out_channels = [], scaled_channels(stage.channels, width)
            for b in range(int(self._option(values, f"stage{s}.depth"))):
                ratio = float(self._option(values, f"stage{s}.block{b}.expand_ratio"))
                blocks.append(
                    InvertedBottleneck(
                        channels,
                        hidden_channels(channels, ratio),
                        out_channels,
                        int(self._option(values, f"stage{s}.block{b}.kernel_size")),
                        stage.stride if b == 0 else 1,
                        stage.squeeze_excite,
                        stage.activation,
                    )
                )
                channels = out_channels
            stages.append(nn.Sequential(*blocks))
        head_channels = scaled_channels(config.head_channels, width)
        features = scaled_channels(config.feature_channels, width)
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

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`: blocks, and the rest as one part."""
        return self._part_table, chosen_parts(self.config, self._indices(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Blocks that are there."""
        return depth_of(self.config, self._indices(codes))

    @cached_property
    def _part_table(self) -> PartTable:
        return part_table(self.config)

    def _indices(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        only = np.zeros(len(codes), dtype=np.int64)
        elastic = {choice.name: codes[:, i] for i, choice in enumerate(self.choices)}
        return {name: elastic.get(name, only) for name in self._all_choices}

    def _option(self, values: Mapping[str, Option], name: str) -> float:
        value = values.get(name, self._all_choices[name].options[0])
        assert not isinstance(value, str)
        return value


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
