"""Residual networks without normalisation, for super-resolution and restoration.

The networks are those of EDSR (Lim et al., "Enhanced Deep Residual Networks for Single Image
Super-Resolution", CVPRW 2017), with two simplifications of networks for mobile devices: one
convolution and a pixel shuffle make the picture (ESPCN, Shi et al., CVPR 2016), to which the image
is added, enlarged by repeating its pixels (ABPN, Du et al., "Anchor-based Plain Net for Mobile
Image Super-Resolution", CVPRW 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.plugin import resolve
from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.edsr.config import BodyBlock, EdsrConfig
from hwnas.search_spaces.edsr.network import Edsr, body_block, stem, tail
from hwnas.search_spaces.edsr.part_counts import chosen_parts, part_table
from hwnas.search_spaces.edsr.presets import PRESETS
from hwnas.search_spaces.map_sizes import Size, aspect_of
from hwnas.search_spaces.presets import changed
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import row
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["PLUGINS", "EdsrSpace", "edsr"]


class EdsrSpace(ConfiguredSpace[EdsrConfig]):
    """Space of networks that make a picture of an image, with elastic channels, depth and blocks.

    Args:
        config: Fixed and elastic dimensions; the preset ``"small"`` if None.
    """

    name = "edsr"
    traceable = True

    def __init__(self, config: EdsrConfig | None = None) -> None:
        super().__init__(config or PRESETS["small"])

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of channels and depth, and of each block."""
        config = self.config
        yield Choice("resolution", config.resolution)
        yield Choice("channels", config.channels)
        yield Choice("depth", config.depth)
        for b in range(max(config.depth)):
            when = ChoiceCondition.deeper("depth", config.depth, b)
            yield Choice(f"block{b}.kind", config.blocks, when)
            yield Choice(f"block{b}.expand_ratio", config.expand_ratio, when)

    @property
    def aspect(self) -> Size:
        """Height and width of the images, as a ratio."""
        return self.config.aspect

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Stem, residual blocks and tail."""
        config, channels = self.config, {"channels": "channels"}
        operators = config.blocks if len(config.blocks) > 1 else ()
        blocks = (
            BlockSpec(
                f"body.{b}",
                partial(body_block, config),
                {**channels, "kind": f"block{b}.kind", "expand_ratio": f"block{b}.expand_ratio"},
                "depth",
                b + 1,
                operator="kind" if operators else "",
                operators=operators,
            )
            for b in range(max(config.depth))
        )
        first = BlockSpec("stem", partial(stem, config), channels)
        return first, *blocks, BlockSpec("tail", partial(tail, config), channels)

    def frame(self, blocks: Mapping[str, nn.Module]) -> Edsr:
        """See `BlockSpace.frame`."""
        body = nn.Sequential(*row(blocks, "body"))
        config = self.config
        return Edsr(blocks["stem"], body, blocks["tail"], config.upscale, config.anchored)

    def part_table(self) -> PartTable:
        """Return the operator counts of the stem, the blocks and the tail."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)


def edsr(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    channels: tuple[int, ...] | None = None,
    depth: tuple[int, ...] | None = None,
    expand_ratio: tuple[float, ...] | None = None,
    blocks: tuple[BodyBlock, ...] | None = None,
    normalisation: Literal["none", "adaptive"] | None = None,
    upscale: int = 2,
) -> EdsrSpace:
    """Return the space of a recipe's ``[space] name = "edsr"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Channels of the pictures.
        preset: ``"tiny"``, ``"small"`` (the default), ``"mixed"``, with separable blocks beside
            dense ones, or ``"baseline"``, up to EDSR's baseline.
        channels: Options for the channels in place of the preset's; this and all that follow are as
            in `EdsrConfig`.
        depth: Options for the number of residual blocks.
        expand_ratio: Options for the channels within a block.
        blocks: Options for the layers of a block.
        normalisation: Normalisation within blocks.
        upscale: Number of times that a picture is as large as its image; that of the task, if it
            has one.

    Raises:
        ConfigError: The preset is unknown, or an option is out of range.
    """
    found = resolve("preset of space edsr", preset or "small", PRESETS)
    config = changed(
        found,
        channels=channels,
        depth=depth,
        expand_ratio=expand_ratio,
        blocks=blocks,
        normalisation=normalisation,
        upscale=upscale,
        resolution=(max(image_shape[:2]),),
        in_channels=image_shape[2],
        outputs=outputs,
        aspect=aspect_of(image_shape),
    )
    return EdsrSpace(config)


PLUGINS = (
    SpacePlugin(
        "space",
        "edsr",
        edsr,
        "Residual networks that make pictures, for super-resolution (EDSR)",
        examples={"tiny": DIGITS, "small": SMALL, "mixed": SMALL, "baseline": SMALL},
    ),
)
