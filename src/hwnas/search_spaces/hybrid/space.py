"""Space of networks of convolution and attention, in which the position of attention is a choice.

The macro design and the slimmed attention are LowFormer's (Nottebaum, Dunnhofer and Micheloni, WACV
2025). AsCAN (Kag et al., NeurIPS 2024) places attention asymmetrically, less of it in early stages.
Here any block after a stage's first may be a convolution, an attention or both, so the space
contains AsCAN's placement among others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.dense_head import DenseHead, DenseNetwork, head_spec, lateral_spec
from hwnas.search_spaces.hybrid.config import HybridConfig, HybridStage
from hwnas.search_spaces.hybrid.network import Hybrid, block, head, stem
from hwnas.search_spaces.hybrid.part_counts import chosen_parts, part_table
from hwnas.search_spaces.hybrid.presets import PRESETS
from hwnas.search_spaces.layers import scaled_channels
from hwnas.search_spaces.map_sizes import Size, aspect_of
from hwnas.search_spaces.presets import changed, preset_for
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, LARGE, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import rows
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["PLUGINS", "HybridSpace", "hybrid"]


class HybridSpace(ConfiguredSpace[HybridConfig]):
    """Space of networks whose blocks are convolutions, attentions, or both.

    Args:
        config: Fixed and elastic dimensions; the preset ``"large"`` at 224 pixels if None.
    """

    name = "hybrid"
    added_later = ("dense_head", "aspect")

    def __init__(self, config: HybridConfig | None = None) -> None:
        super().__init__(PRESETS["large"]((224, 224, 3)) if config is None else config)

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of resolution and width, and of each stage and block."""
        yield Choice("resolution", self.config.resolution)
        yield Choice("width", self.config.width)
        for s, stage in enumerate(self.config.stages):
            yield Choice(f"stage{s}.depth", stage.depth)
            yield Choice(f"stage{s}.block0.expand_ratio", stage.expand_ratio)
            for b in range(1, max(stage.depth)):
                yield from _choices_of_block(stage, f"stage{s}", b)
        if self.config.dense_head is not None:
            yield self.config.dense_head.choice

    @property
    def aspect(self) -> Size:
        """Height and width of the inputs, as a ratio."""
        return self.config.aspect

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Blocks, stem, and head or dense head; most depend on the width."""
        config, width = self.config, {"width": "width"}
        found = []
        for s, stage in enumerate(config.stages):
            for b in range(max(stage.depth)):
                names = ("kind", *stage.ratios) if b else ("expand_ratio",)
                decided_by = width | {name: f"stage{s}.block{b}.{name}" for name in names}
                make = partial(block, config, s, b)
                found.append(
                    BlockSpec(f"stages.{s}.{b}", make, decided_by, f"stage{s}.depth", b + 1)
                )
        found.append(BlockSpec("stem", partial(stem, config), width))
        if config.dense_head is not None:
            for s in config.pyramid:
                channels = {w: scaled_channels(config.stages[s].channels, w) for w in config.width}
                found.append(lateral_spec(s, channels, "width"))
            return *found, head_spec(config.dense_head, config.outputs)
        return *found, BlockSpec("head", partial(head, config), width)

    def frame(self, blocks: Mapping[str, nn.Module]) -> Hybrid | DenseNetwork:
        """See `BlockSpace.frame`."""
        if self.config.dense_head is not None:
            return DenseNetwork.of(blocks, rows(blocks, "stages"))
        return Hybrid(blocks["stem"], rows(blocks, "stages"), blocks["head"])

    def part_table(self) -> PartTable:
        """Return the counts of attentions, perceptrons, convolutions, and the rest as one part."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)


def _choices_of_block(stage: HybridStage, name: str, b: int) -> Iterator[Choice]:
    """Yield the choices of a block after a stage's first: its kind, and the ratios of that kind."""
    there = ChoiceCondition.deeper(f"{name}.depth", stage.depth, b)
    kind = Choice(f"{name}.block{b}.kind", stage.blocks, there)
    yield kind
    for ratio, kinds in stage.ratios.items():
        when = there if kinds == stage.blocks else ChoiceCondition(kind.name, kinds)
        yield Choice(f"{name}.block{b}.{ratio}", getattr(stage, ratio), when)


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
    dense_head: DenseHead | None = None,
    maps: bool = False,
) -> HybridSpace:
    """Return the space of a recipe's ``[space] name = "hybrid"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, or number of maps, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"`` or
            ``"lowformer-b0"`` (that one network); chosen by the size of the images if None.
        stages: Stages in place of the preset's; this and all that follow are as in `HybridConfig`.
        resolution: Options for the longer side of the input, in pixels; its aspect ratio is that of
            the images.
        width: Options for the width multiplier.
        head_width: Channels of an attention head.
        stem_channels: Channels of the first convolution.
        stem_stride: Stride of the first convolution.
        head_channels: Channels of the last convolution.
        feature_channels: Length of the vector before the last linear layer.
        dropout: Dropout probability before the last linear layer.
        dense_head: Head for maps.
        maps: Whether the networks have to give maps; ``dense_head`` is then that of `DenseHead` if
            None.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    config = changed(
        preset_for("hybrid", preset, image_shape, PRESETS)(image_shape),
        in_channels=image_shape[2],
        outputs=outputs,
        stages=stages,
        resolution=resolution,
        width=width,
        head_width=head_width,
        stem_channels=stem_channels,
        stem_stride=stem_stride,
        head_channels=head_channels,
        feature_channels=feature_channels,
        dropout=dropout,
        dense_head=DenseHead() if maps and dense_head is None else dense_head,
        aspect=aspect_of(image_shape),
    )
    return HybridSpace(config)


PLUGINS = (
    SpacePlugin(
        "space",
        "hybrid",
        hybrid,
        "Convolutions, then attention at low resolution (LowFormer)",
        examples={
            "tiny": DIGITS,
            "small": SMALL,
            "large": LARGE,
            "lowformer-b0": LARGE,
        },
    ),
)
