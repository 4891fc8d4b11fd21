"""Space of vision transformers.

The blocks are those of ViT (Dosovitskiy et al., ICLR 2021). Depth, width, heads, MLP ratio, rank,
patch size and resolution are elastic, as in AutoFormer (Chen et al., ICCV 2021) and, for ranks and
patch sizes, in MCUFormer (Liang et al., NeurIPS 2023). Blocks may merge tokens (ToMe, Bolya et al.,
ICLR 2023), by an elastic share. There is no class token: the head takes the
mean of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.layers import Position
from hwnas.search_spaces.map_sizes import aspect_of
from hwnas.search_spaces.presets import changed, preset_for
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, LARGE, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import row
from hwnas.search_spaces.supernet.block_specs import BlockSpec
from hwnas.search_spaces.vit.config import VitConfig
from hwnas.search_spaces.vit.network import VisionTransformer, block, embedding, head
from hwnas.search_spaces.vit.part_counts import chosen_parts, part_table
from hwnas.search_spaces.vit.presets import PRESETS

__all__ = ["PLUGINS", "VitSpace", "vit"]


class VitSpace(ConfiguredSpace[VitConfig]):
    """Space of vision transformers; a smaller one has the first blocks, heads, channels and ranks.

    Args:
        config: Fixed and elastic dimensions; AutoFormer-tiny's at 224 pixels if None.
    """

    name = "vit"
    added_later = ("aspect", "merging")

    def __init__(self, config: VitConfig | None = None) -> None:
        super().__init__(PRESETS["large"]((224, 224, 3)) if config is None else config)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        values = self.values(architecture)
        size = self.config.size(int(values["resolution"]), int(values["patch_size"]))
        return self.config.in_channels, *size

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of the whole network, then of each block."""
        for name in ("resolution", "patch_size", "width", "depth", "merging"):
            yield Choice(name, getattr(self.config, name))
        for b in range(max(self.config.depth)):
            when = ChoiceCondition.deeper("depth", self.config.depth, b)
            for name in self._of_blocks:
                yield Choice(f"block{b}.{name}", getattr(self.config, name), when)

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Blocks, head and embedding; all depend on the width."""
        config, width = self.config, {"width": "width"}
        of_patches = width | {"patch_size": "patch_size"}
        if config.position == "table":
            of_patches["resolution"] = "resolution"
        blocks = (
            BlockSpec(
                f"blocks.{b}",
                partial(block, config),
                width
                | {name: f"block{b}.{name}" for name in self._of_blocks}
                | ({} if config.merging == (0,) else {"merging": "merging"}),
                "depth",
                b + 1,
            )
            for b in range(max(config.depth))
        )
        last = BlockSpec("head", partial(head, config), width)
        return *blocks, last, BlockSpec("embedding", partial(embedding, config), of_patches)

    def frame(self, blocks: Mapping[str, nn.Module]) -> VisionTransformer:
        """See `BlockSpace.frame`."""
        return VisionTransformer(blocks["embedding"], row(blocks, "blocks"), blocks["head"])

    def part_table(self) -> PartTable:
        """Return the operator counts of attentions, perceptrons, and the rest as one part."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)

    @property
    def _of_blocks(self) -> tuple[str, ...]:
        """Names of the choices of each block."""
        return ("heads", "mlp_ratio", "rank") if self.config.rank else ("heads", "mlp_ratio")


def vit(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    depth: tuple[int, ...] | None = None,
    width: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    mlp_ratio: tuple[float, ...] | None = None,
    rank: tuple[float, ...] | None = None,
    patch_size: tuple[int, ...] | None = None,
    merging: tuple[float, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    position: Position | None = None,
    head_width: int | None = None,
    dropout: float | None = None,
) -> VitSpace:
    """Return the space of a recipe's ``[space] name = "vit"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"``
            (AutoFormer-tiny's), ``"low-rank"`` and ``"mcuformer"`` (for microcontrollers) or
            ``"deit-tiny"`` (that one network); chosen by the size of the images among the first
            three if None.
        depth: Options for the number of blocks, in place of the preset's; this and all that follow
            are as in `VitConfig`.
        width: Options for the channels of a token.
        heads: Options for each block's number of heads.
        mlp_ratio: Options for each block's hidden channels, as a multiple of the width.
        rank: Options for the rank of each block's linear layers, as a share of the full one.
        patch_size: Options for the side of a patch in pixels, decreasing.
        merging: Options for the share of the tokens that each block merges into others, decreasing,
            in [0, 0.5].
        resolution: Options for the longer side of the input, in pixels; its aspect ratio is about
            that of the images.
        position: ``"convolution"`` or ``"table"``.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        dropout: Dropout probability before the last linear layer.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    config = changed(
        preset_for("vit", preset, image_shape, PRESETS)(image_shape),
        in_channels=image_shape[2],
        outputs=outputs,
        depth=depth,
        width=width,
        heads=heads,
        mlp_ratio=mlp_ratio,
        rank=rank,
        patch_size=patch_size,
        merging=merging,
        resolution=resolution,
        position=position,
        head_width=head_width,
        dropout=dropout,
        aspect=aspect_of(image_shape),
    )
    return VitSpace(config)


PLUGINS = (
    SpacePlugin(
        "space",
        "vit",
        vit,
        "Vision transformers (DeiT)",
        examples={
            "tiny": DIGITS,
            "small": SMALL,
            "low-rank": SMALL,
            "large": LARGE,
            "mcuformer": LARGE,
            "deit-tiny": LARGE,
        },
    ),
)
