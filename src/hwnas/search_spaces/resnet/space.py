"""ResNets with elastic depth, width, expansion and resolution.

The blocks are those of ResNet-50 and ResNet-18 (He et al., CVPR 2016); the elastic dimensions those
of once-for-all's ResNet-50 (Cai et al., ICLR 2020, and its code), which Intel's DyNAS-T searches
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.dense_head import DenseHead, DenseNetwork, head_spec, lateral_spec
from hwnas.search_spaces.map_sizes import Size, aspect_of
from hwnas.search_spaces.presets import changed, preset_for
from hwnas.search_spaces.resnet.config import ResNetConfig, ResNetStage
from hwnas.search_spaces.resnet.network import ResNet, block, classifier, first_block, stem
from hwnas.search_spaces.resnet.part_counts import chosen_parts, part_table
from hwnas.search_spaces.resnet.presets import PRESETS
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import StageOutline
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, LARGE, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import rows
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["PLUGINS", "ResNetSpace", "resnet"]

_KERNEL_SIZE = 3  # in every block


class ResNetSpace(ConfiguredSpace[ResNetConfig]):
    """Space of residual networks in which the stem and each stage have a width of their own.

    Every combination of options is valid: the first block of a stage projects its shortcut, and all
    others have as many channels as the block before.

    Args:
        config: Fixed and elastic dimensions; up to ResNet-50 at 224 pixels if None.
    """

    name = "resnet"
    added_later = ("dense_head", "aspect")
    traceable = True

    def __init__(self, config: ResNetConfig | None = None) -> None:
        super().__init__(resnet((224, 224, 3), 1000).config if config is None else config)

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of resolution, and of the stem and each stage and block."""
        config = self.config
        yield Choice("resolution", config.resolution)
        yield Choice("stem.width", config.width)
        for s, stage in enumerate(config.stages):
            yield Choice(f"stage{s}.width", config.width)
            yield Choice(f"stage{s}.depth", stage.depth)
            for b in range(max(stage.depth)):
                when = ChoiceCondition.deeper(f"stage{s}.depth", stage.depth, b)
                yield Choice(f"stage{s}.block{b}.expand_ratio", stage.expand_ratio, when)
        if config.dense_head is not None:
            yield config.dense_head.choice

    @property
    def aspect(self) -> Size:
        """Height and width of the inputs, as a ratio."""
        return self.config.aspect

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Stem, blocks, and classifier or dense head.

        A first block also depends on the width before it.
        """
        config, before = self.config, "stem.width"
        found = [BlockSpec("stem", partial(stem, config), {"width": before})]
        for s, stage in enumerate(config.stages):
            for b in range(max(stage.depth)):
                decided_by = {
                    "width": f"stage{s}.width",
                    "expand_ratio": f"stage{s}.block{b}.expand_ratio",
                }
                make = partial(block, config, s)
                if b == 0:
                    decided_by["before"], make = before, partial(first_block, config, s)
                found.append(
                    BlockSpec(f"stages.{s}.{b}", make, decided_by, f"stage{s}.depth", b + 1)
                )
            before = f"stage{s}.width"
        if config.dense_head is not None:
            for s in config.pyramid:
                channels = {w: config.stages[s].channels_at(w) for w in config.width}
                found.append(lateral_spec(s, channels, f"stage{s}.width"))
            return *found, head_spec(config.dense_head, config.outputs)
        return *found, BlockSpec("classifier", partial(classifier, config), {"width": before})

    def frame(self, blocks: Mapping[str, nn.Module]) -> ResNet | DenseNetwork:
        """See `BlockSpace.frame`."""
        if self.config.dense_head is not None:
            return DenseNetwork.of(blocks, rows(blocks, "stages"))
        return ResNet(blocks["stem"], rows(blocks, "stages"), blocks["classifier"])

    @property
    def identity(self) -> dict[str, Any]:
        """Whole configuration; fields that were added later only where they are not the default."""
        found = super().identity
        for stage in found["stages"]:
            if stage["block"] == "bottleneck":
                del stage["block"]
        return found

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """Return the stages of residual blocks."""
        values = self.values(self.check(architecture))
        return tuple(
            StageOutline(
                stage.channels_at(values[f"stage{s}.width"]),
                stage.stride,
                tuple(
                    (_KERNEL_SIZE, values[f"stage{s}.block{b}.expand_ratio"])
                    for b in range(values[f"stage{s}.depth"])
                ),
            )
            for s, stage in enumerate(self.config.stages)
        )

    def part_table(self) -> PartTable:
        """Return the operator counts of the stem, the blocks and the classifier."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)


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
    dense_head: DenseHead | None = None,
    maps: bool = False,
) -> ResNetSpace:
    """Return the space of a recipe's ``[space] name = "resnet"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, or number of maps, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96) or ``"resnet-50"``,
            which is its largest network; chosen by the size of the images if None. For CPUs:
            ``"inverted"``, of inverted bottlenecks on small maps, ``"compact"``, of dense
            convolutions on small maps, and ``"mixed"``, of dense convolutions on large maps and
            depthwise ones on small maps.
        stages: Stages in place of the preset's; this and all that follow are as in `ResNetConfig`.
        resolution: Options for the longer side of the input, in pixels; its aspect ratio is that of
            the images.
        width: Options for the width multipliers of the stem and of each stage.
        stem_channels: Channels of the first convolution.
        stem_kernel_size: Kernel size of the first convolution.
        stem_stride: Stride of the first convolution.
        stem_pool: Whether max pooling of stride 2 follows.
        dropout: Dropout probability before the linear layer.
        dense_head: Head for maps.
        maps: Whether the networks have to give maps; ``dense_head`` is then that of `DenseHead` if
            None.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    found = preset_for("resnet", preset, image_shape, PRESETS, large="resnet-50")
    kernel_size, stride = found.stem(max(image_shape[:2]))
    config = changed(
        found.config,
        in_channels=image_shape[2],
        outputs=outputs,
        stages=stages,
        resolution=found.resolution(max(image_shape[:2])) if resolution is None else resolution,
        width=width,
        stem_channels=stem_channels,
        stem_kernel_size=kernel_size if stem_kernel_size is None else stem_kernel_size,
        stem_stride=stride if stem_stride is None else stem_stride,
        stem_pool=stem_pool,
        dropout=dropout,
        dense_head=DenseHead() if maps and dense_head is None else dense_head,
        aspect=aspect_of(image_shape),
    )
    return ResNetSpace(config)


PLUGINS = (
    SpacePlugin(
        "space",
        "resnet",
        resnet,
        "Residual networks of dense, bottleneck or inverted blocks (ResNet)",
        examples={
            "tiny": DIGITS,
            "small": SMALL,
            "inverted": SMALL,
            "compact": LARGE,
            "mixed": LARGE,
            "resnet-50": LARGE,
        },
    ),
)
