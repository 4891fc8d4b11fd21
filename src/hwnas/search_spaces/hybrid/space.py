"""Networks of convolution and attention, stage by stage, with their places as a choice.

Macro design and slimmed attention are LowFormer's (Nottebaum, Dunnhofer and Micheloni, WACV 2025).
AsCAN (Kag et al., NeurIPS 2024) places attention asymmetrically, less of it in early stages; here
any block after a stage's first may be a convolution, an attention or both, so that is one of the
networks, not a rule.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.plugin import resolve
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.hybrid.config import PRESETS, HybridConfig, HybridStage
from hwnas.search_spaces.hybrid.network import Hybrid, attention, convolution, head, stem
from hwnas.search_spaces.hybrid.steps import chosen_parts, depth_of, part_table
from hwnas.search_spaces.layers import Context, scaled_channels
from hwnas.search_spaces.space import SearchSpace
from hwnas.search_spaces.steps import PartTable

__all__ = ["HybridSpace", "hybrid"]


class HybridSpace(SearchSpace):
    """Stages of blocks that convolve, attend, or do both.

    Choices with a single option are fixed and do not appear in `choices`.

    Args:
        config: What is elastic and what is fixed; the preset ``"large"`` at 224 pixels if None.
    """

    name = "hybrid"

    def __init__(self, config: HybridConfig | None = None) -> None:
        self.config = PRESETS["large"]((224, 224, 3)) if config is None else config

    @cached_property
    def _all_choices(self) -> dict[str, Choice]:
        config = self.config
        found = [Choice("resolution", config.resolution), Choice("width", config.width)]
        for s, stage in enumerate(config.stages):
            found.append(Choice(f"stage{s}.depth", stage.depth))
            found.append(Choice(f"stage{s}.block0.expand_ratio", stage.expand_ratio))
            for b in range(1, max(stage.depth)):
                found += _choices_of_block(stage, f"stage{s}", b)
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
        side = int(self._number(architecture.as_dict(), "resolution"))
        return self.config.in_channels, side, side

    def build(self, architecture: Architecture) -> Hybrid:
        """A plain module: (N, C, H, W) float32 -> (N, outputs) float32."""
        config, values = self.config, self.check(architecture).as_dict()
        width = self._number(values, "width")
        stages, channels = [], scaled_channels(config.stem_channels, width)
        for s, stage in enumerate(config.stages):
            outputs = scaled_channels(stage.channels, width)
            ratio = self._number(values, f"stage{s}.block0.expand_ratio")
            first = convolution(stage, channels, outputs, ratio, True)
            blocks = [nn.Sequential(OrderedDict(convolution=first))]
            for b in range(1, int(self._number(values, f"stage{s}.depth"))):
                blocks.append(self._block(values, s, b, outputs))
            stages.append(nn.Sequential(*blocks))
            channels = outputs
        return Hybrid(stem(config, width), stages, head(config, width))

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`: attentions, perceptrons, convolutions, and the rest as one."""
        return self._part_table, chosen_parts(self.config, self._indices(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Blocks that are there."""
        return depth_of(self.config, self._indices(codes))

    @cached_property
    def _part_table(self) -> PartTable:
        return part_table(self.config)

    def _block(self, values: Mapping[str, Option], s: int, b: int, channels: int) -> nn.Sequential:
        stage, name = self.config.stages[s], f"stage{s}.block{b}"
        kind = self._option(values, f"{name}.kind")
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if kind in ("attention", "both"):
            parts["attention"] = attention(self.config, stage, channels)
            ratio = self._number(values, f"{name}.mlp_ratio")
            parts["perceptron"] = Context.perceptron(channels, ratio)
        if kind in ("convolution", "both"):
            ratio = self._number(values, f"{name}.expand_ratio")
            parts["convolution"] = convolution(stage, channels, channels, ratio, False)
        return nn.Sequential(parts)

    def _indices(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        only = np.zeros(len(codes), dtype=np.int64)
        elastic = {choice.name: codes[:, i] for i, choice in enumerate(self.choices)}
        return {name: elastic.get(name, only) for name in self._all_choices}

    def _option(self, values: Mapping[str, Option], name: str) -> Option:
        return values.get(name, self._all_choices[name].options[0])

    def _number(self, values: Mapping[str, Option], name: str) -> float:
        value = self._option(values, name)
        assert not isinstance(value, str)
        return value


def _choices_of_block(stage: HybridStage, name: str, block: int) -> Iterator[Choice]:
    """What a block after a stage's first is, and the sizes of what it then has."""
    deep_enough = tuple(depth for depth in stage.depth if depth > block)
    there = None if block < min(stage.depth) else When(f"{name}.depth", deep_enough)
    kind = Choice(f"{name}.block{block}.kind", stage.blocks, there)
    yield kind
    for ratio, kinds in (
        ("expand_ratio", stage.kinds_with("convolution")),
        ("mlp_ratio", stage.kinds_with("attention")),
    ):
        if kinds:
            when = there if kinds == stage.blocks else When(kind.name, kinds)
            yield Choice(f"{name}.block{block}.{ratio}", getattr(stage, ratio), when)


def hybrid(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    stages: tuple[HybridStage, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    width: tuple[float, ...] | None = None,
    head_width: int | None = None,
    stem_channels: int | None = None,
    stem_stride: int | None = None,
    head_channels: int | None = None,
    feature_channels: int | None = None,
    dropout: float | None = None,
) -> HybridSpace:
    """The space of a recipe's ``[space] name = "hybrid"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"`` or
            ``"lowformer-b0"`` (that one network); chosen by the size of the images if None.
        stages: As in `HybridConfig`, in place of the preset's; so are all that follow.
        resolution: Options for the input's height and width, in pixels.
        width: Options for the width multiplier.
        head_width: Channels of an attention head.
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
    config = resolve("preset of space hybrid", preset or automatic, PRESETS)(image_shape)
    overrides = {
        "stages": stages,
        "resolution": resolution,
        "width": width,
        "head_width": head_width,
        "stem_channels": stem_channels,
        "stem_stride": stem_stride,
        "head_channels": head_channels,
        "feature_channels": feature_channels,
        "dropout": dropout,
    }
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return HybridSpace(
        dataclasses.replace(config, in_channels=image_shape[2], outputs=outputs, **given)
    )
