"""Space of decoder language models.

The networks are transformers with causal attention, as GPT-2 (Radford et al., 2019). Depth, width,
heads and MLP ratio are elastic, as in HW-GPT-Bench (Sukthanker et al., NeurIPS 2024). Tokens are
bytes, so there is no tokeniser (ByT5, Xue et al., TACL 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.errors import ConfigError
from hwnas.plugin import resolve
from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.decoder.config import DecoderConfig
from hwnas.search_spaces.decoder.network import Decoder, block, embedding, head
from hwnas.search_spaces.decoder.part_counts import chosen_parts, part_table
from hwnas.search_spaces.decoder.presets import PRESETS
from hwnas.search_spaces.presets import changed
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import SpacePlugin
from hwnas.search_spaces.supernet.block_space import row
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["PLUGINS", "DecoderSpace", "decoder"]

_OF_BLOCKS = ("heads", "mlp_ratio")


class DecoderSpace(ConfiguredSpace[DecoderConfig]):
    """Space of decoders; a smaller one has the first blocks, heads and channels.

    Args:
        config: Fixed and elastic dimensions; the preset ``"small"`` if None.
    """

    name = "decoder"

    def __init__(self, config: DecoderConfig | None = None) -> None:
        super().__init__(config or PRESETS["small"])

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return the shape of one window, (1, 1, tokens)."""
        return self.config.in_channels, 1, self.config.resolution[0]

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of width and depth, and of each block."""
        config = self.config
        for name in ("resolution", "width", "depth"):
            yield Choice(name, getattr(config, name))
        for b in range(max(config.depth)):
            when = ChoiceCondition.deeper("depth", config.depth, b)
            for name in _OF_BLOCKS:
                yield Choice(f"block{b}.{name}", getattr(config, name), when)

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Blocks, head and embedding; all depend on the width."""
        config, width = self.config, {"width": "width"}
        blocks = (
            BlockSpec(
                f"blocks.{b}",
                partial(block, config),
                width | {name: f"block{b}.{name}" for name in _OF_BLOCKS},
                "depth",
                b + 1,
            )
            for b in range(max(config.depth))
        )
        ends = (("head", head), ("embedding", embedding))
        return *blocks, *(BlockSpec(name, partial(make, config), width) for name, make in ends)

    def frame(self, blocks: Mapping[str, nn.Module]) -> Decoder:
        """See `BlockSpace.frame`."""
        return Decoder(blocks["embedding"], row(blocks, "blocks"), blocks["head"])

    def part_table(self) -> PartTable:
        """Return the operator counts of attentions, perceptrons, and the rest as one part."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)


def decoder(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str = "small",
    depth: tuple[int, ...] | None = None,
    width: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    mlp_ratio: tuple[float, ...] | None = None,
    head_width: int | None = None,
    dropout: float | None = None,
) -> DecoderSpace:
    """Return the space of a recipe's ``[space] name = "decoder"``.

    Args:
        image_shape: 1, tokens of a window, and 1.
        outputs: Number of different tokens.
        preset: ``"tiny"``, ``"small"`` or ``"base"``, up to GPT-2's size.
        depth: Options for the number of blocks, in place of the preset's; this and all that follow
            are as in `DecoderConfig`.
        width: Options for the channels of a token.
        heads: Options for each block's number of heads.
        mlp_ratio: Options for each block's hidden channels, as a multiple of the width.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        dropout: Dropout probability before the last linear layer.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the data are no text.
    """
    if image_shape[0] != 1:
        raise ConfigError(
            f"space decoder takes tokens, but the data are images of {image_shape[0]} rows; set "
            'data.source = "text:PATH", or choose another space'
        )
    config = changed(
        resolve("preset of space decoder", preset, PRESETS),
        in_channels=image_shape[2],
        outputs=outputs,
        resolution=(image_shape[1],),
        depth=depth,
        width=width,
        heads=heads,
        mlp_ratio=mlp_ratio,
        head_width=head_width,
        dropout=dropout,
    )
    return DecoderSpace(config)


_TEXT = (1, 128, 1)

PLUGINS = (
    SpacePlugin(
        "space",
        "decoder",
        decoder,
        "Language models of bytes (GPT)",
        examples=dict.fromkeys(PRESETS, _TEXT),
    ),
)
