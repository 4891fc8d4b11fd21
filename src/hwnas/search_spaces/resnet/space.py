"""ResNets with elastic depth, width, expansion and resolution.

The blocks are those of ResNet-50 (He et al., CVPR 2016); the elastic dimensions those of
once-for-all's ResNet-50 (Cai et al., ICLR 2020, and its code), which Intel's DyNAS-T searches too.
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
from hwnas.search_spaces.layers import Bottleneck, ConvNormAct
from hwnas.search_spaces.resnet.config import PRESETS, ResNetConfig, ResNetStage
from hwnas.search_spaces.resnet.steps import chosen_parts, depth_of, part_table
from hwnas.search_spaces.space import SearchSpace, StageOutline
from hwnas.search_spaces.steps import PartTable

__all__ = ["ResNetSpace", "resnet"]

_KERNEL_SIZE = 3  # of every block


class ResNet(nn.Module):
    """One network of a `ResNetSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, stem: nn.Module, stages: list[nn.Sequential], classifier: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Outputs (N, outputs) of images (N, C, H, W)."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        outputs: Tensor = self.classifier(x.mean((2, 3)))
        return outputs


class ResNetSpace(SearchSpace):
    """Bottleneck networks; the stem and each stage have a width of their own.

    No option breaks a residual: the first block of a stage projects its shortcut, and all others
    have as many channels as the block before. Choices with a single option are fixed and do not
    appear in `choices`.

    Args:
        config: What is elastic and what is fixed; up to ResNet-50 at 224 pixels if None.
    """

    name = "resnet"

    def __init__(self, config: ResNetConfig | None = None) -> None:
        self.config: ResNetConfig = resnet((224, 224, 3), 1000).config if config is None else config

    @cached_property
    def _all_choices(self) -> dict[str, Choice]:
        config = self.config
        found = [Choice("resolution", config.resolution), Choice("stem.width", config.width)]
        for s, stage in enumerate(config.stages):
            found.append(Choice(f"stage{s}.width", config.width))
            found.append(Choice(f"stage{s}.depth", stage.depth))
            for b in range(max(stage.depth)):
                deep_enough = tuple(d for d in stage.depth if d > b)
                when = None if b < min(stage.depth) else When(f"stage{s}.depth", deep_enough)
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
        """The stages of bottlenecks."""
        values = self.check(architecture).as_dict()
        return tuple(
            StageOutline(
                stage.channels_at(self._option(values, f"stage{s}.width")),
                stage.stride,
                tuple((_KERNEL_SIZE, ratio) for ratio in self._ratios(s, values)),
            )
            for s, stage in enumerate(self.config.stages)
        )

    def build(self, architecture: Architecture) -> ResNet:
        """A plain module: (N, C, H, W) float32 -> (N, outputs) float32."""
        config, values = self.config, self.check(architecture).as_dict()
        channels = config.stem_at(self._option(values, "stem.width"))
        stem: dict[str, nn.Module] = {
            "conv": ConvNormAct(
                config.in_channels,
                channels,
                config.stem_kernel_size,
                config.stem_stride,
                activation="relu",
            )
        }
        if config.stem_pool:
            stem["pool"] = nn.MaxPool2d(3, config.strides[1], 1)
        stages = []
        for s, stage in enumerate(config.stages):
            width, ratios = self._option(values, f"stage{s}.width"), self._ratios(s, values)
            stages.append(_stage(stage, channels, width, ratios))
            channels = stage.channels_at(width)
        dropout, outputs = nn.Dropout(config.dropout), nn.Linear(channels, config.outputs)
        classifier = nn.Sequential(OrderedDict(dropout=dropout, outputs=outputs))
        return ResNet(nn.Sequential(OrderedDict(stem)), stages, classifier)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`: the stem, blocks, the classifier."""
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

    def _ratios(self, s: int, values: Mapping[str, Option]) -> list[float]:
        """Expansion ratios of a stage's blocks that are there."""
        depth = int(self._option(values, f"stage{s}.depth"))
        return [self._option(values, f"stage{s}.block{b}.expand_ratio") for b in range(depth)]

    def _option(self, values: Mapping[str, Option], name: str) -> float:
        value = values.get(name, self._all_choices[name].options[0])
        assert not isinstance(value, str)
        return value


def _stage(stage: ResNetStage, inputs: int, width: float, ratios: list[float]) -> nn.Sequential:
    outputs = stage.channels_at(width)
    first, *others = [stage.hidden_at(width, ratio) for ratio in ratios]
    blocks = [Bottleneck(inputs, first, outputs, stage.stride, projected=True)]
    return nn.Sequential(*blocks, *(Bottleneck(outputs, hidden, outputs) for hidden in others))


def resnet(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    stages: tuple[ResNetStage, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    width: tuple[float, ...] | None = None,
    stem_channels: int | None = None,
    stem_kernel_size: int | None = None,
    stem_stride: int | None = None,
    stem_pool: bool | None = None,
    dropout: float | None = None,
) -> ResNetSpace:
    """The space of a recipe's ``[space] name = "resnet"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96) or ``"resnet-50"``,
            whose largest network that is; chosen by the size of the images if None.
        stages: As in `ResNetConfig`, in place of the preset's; so are all that follow.
        resolution: Options for the input's height and width, in pixels.
        width: Options for the width multipliers of the stem and of each stage.
        stem_channels: Channels of the first convolution.
        stem_kernel_size: Of the first convolution.
        stem_stride: Of the first convolution.
        stem_pool: Whether a maximum of stride 2 follows it.
        dropout: Probability before the linear layer.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    side = max(image_shape[:2])
    automatic = "tiny" if side <= 16 else "small" if side <= 96 else "resnet-50"
    found = resolve("preset of space resnet", preset or automatic, PRESETS)
    overrides = {
        "stages": stages,
        "resolution": found.resolution(side) if resolution is None else resolution,
        "width": width,
        "stem_channels": stem_channels,
        "stem_kernel_size": stem_kernel_size,
        "stem_stride": stem_stride,
        "stem_pool": stem_pool,
        "dropout": dropout,
    }
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return ResNetSpace(
        dataclasses.replace(found.config, in_channels=image_shape[2], outputs=outputs, **given)
    )
