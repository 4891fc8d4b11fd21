"""Space of hierarchical vision transformers.

The networks are those of Hiera (Ryali et al., "Hiera: A Hierarchical Vision Transformer without the
Bells-and-Whistles", ICML 2023), which TurboViT searched (Wong et al., 2023): plain transformer
blocks in stages, with attention within mask units in the first stages and pooled queries between
stages. Depth, width, heads, MLP ratio, the number of local stages and the resolution are elastic.
The head takes the mean of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.hiera.config import HieraConfig
from hwnas.search_spaces.hiera.network import Hiera, block, embedding, head
from hwnas.search_spaces.hiera.part_counts import chosen_parts, part_table
from hwnas.search_spaces.hiera.presets import PRESETS
from hwnas.search_spaces.layers import Position
from hwnas.search_spaces.map_sizes import aspect_of
from hwnas.search_spaces.presets import changed, preset_for
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, LARGE, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import rows
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["PLUGINS", "HieraSpace", "hiera"]


class HieraSpace(ConfiguredSpace[HieraConfig]):
    """Space of hierarchical vision transformers; a smaller one has the first blocks and channels.

    Args:
        config: Fixed and elastic dimensions; the preset ``"large"`` at 224 pixels if None.
    """

    name = "hiera"

    def __init__(self, config: HieraConfig | None = None) -> None:
        super().__init__(PRESETS["large"]((224, 224, 3)) if config is None else config)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        resolution = int(self.values(architecture)["resolution"])
        return self.config.in_channels, *self.config.size(resolution)

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of the whole network, then of each stage and its blocks."""
        config = self.config
        for name in ("resolution", "width", "local_stages"):
            yield Choice(name, getattr(config, name))
        for stage, depths in enumerate(config.depth):
            depth = f"stage{stage}.depth"
            yield Choice(depth, depths)
            for b in range(max(depths)):
                when = ChoiceCondition.deeper(depth, depths, b)
                yield Choice(f"stage{stage}.block{b}.heads", config.heads, when)
                yield Choice(f"stage{stage}.block{b}.mlp_ratio", config.mlp_ratio, when)

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Blocks, head and embedding; all depend on the width."""
        config, width = self.config, {"width": "width"}
        blocks = (
            BlockSpec(
                f"stages.{stage}.{b}",
                partial(block, config, stage, b == 0),
                {
                    **width,
                    "local_stages": "local_stages",
                    "heads": f"stage{stage}.block{b}.heads",
                    "mlp_ratio": f"stage{stage}.block{b}.mlp_ratio",
                },
                f"stage{stage}.depth",
                b + 1,
            )
            for stage, depths in enumerate(config.depth)
            for b in range(max(depths))
        )
        of_images = width | ({"resolution": "resolution"} if config.position == "table" else {})
        last = BlockSpec("head", partial(head, config), width)
        return *blocks, last, BlockSpec("embedding", partial(embedding, config), of_images)

    def frame(self, blocks: Mapping[str, nn.Module]) -> Hiera:
        """See `BlockSpace.frame`."""
        return Hiera(blocks["embedding"], rows(blocks, "stages"), blocks["head"])

    def part_table(self) -> PartTable:
        """Return the operator counts of attentions, perceptrons, and the rest as one part."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)


def hiera(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    depth: tuple[tuple[int, ...], ...] | None = None,
    width: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    mlp_ratio: tuple[float, ...] | None = None,
    local_stages: tuple[int, ...] | None = None,
    mask_unit: int | None = None,
    patch_size: int | None = None,
    resolution: tuple[int, ...] | None = None,
    position: Position | None = None,
    head_width: int | None = None,
    dropout: float | None = None,
) -> HieraSpace:
    """Return the space of a recipe's ``[space] name = "hiera"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"`` (around
            Hiera-T) or ``"hiera-tiny"`` (that one network); chosen by the size of the images among
            the first three if None.
        depth: Options for the number of blocks of each stage, in place of the preset's; this and
            all that follow are as in `HieraConfig`.
        width: Options for the channels of a token in the first stage.
        heads: Options for each block's number of heads, as that of a block in the first stage.
        mlp_ratio: Options for each block's hidden channels, as a multiple of its channels.
        local_stages: Options for the number of stages with attention in mask units, decreasing.
        mask_unit: Side of a mask unit in the first stage, in tokens.
        patch_size: Distance of tokens in pixels.
        resolution: Options for the longer side of the input, in pixels; its aspect ratio is about
            that of the images.
        position: ``"convolution"`` or ``"table"``.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        dropout: Dropout probability before the last linear layer.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    config = changed(
        preset_for("hiera", preset, image_shape, PRESETS)(image_shape),
        in_channels=image_shape[2],
        outputs=outputs,
        depth=depth,
        width=width,
        heads=heads,
        mlp_ratio=mlp_ratio,
        local_stages=local_stages,
        mask_unit=mask_unit,
        patch_size=patch_size,
        resolution=resolution,
        position=position,
        head_width=head_width,
        dropout=dropout,
        aspect=aspect_of(image_shape),
    )
    return HieraSpace(config)


PLUGINS = (
    SpacePlugin(
        "space",
        "hiera",
        hiera,
        "Vision transformers in stages (Hiera)",
        examples={"tiny": DIGITS, "small": SMALL, "large": LARGE, "hiera-tiny": LARGE},
    ),
)
