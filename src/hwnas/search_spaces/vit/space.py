"""Vision transformers with elastic depth, width, heads, MLP ratio, rank, patch size and resolution.

The blocks are those of ViT (Dosovitskiy et al., ICLR 2021); the elastic dimensions those of
AutoFormer (Chen et al., ICCV 2021) and, for ranks and patch sizes, of MCUFormer (Liang et al.,
NeurIPS 2023). There is no class token: the head takes the mean of all tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.plugin import resolve
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.layers import Attention, FeedForward
from hwnas.search_spaces.space import SearchSpace
from hwnas.search_spaces.steps import PartTable
from hwnas.search_spaces.vit.config import PRESETS, Position, VitConfig, hidden_width
from hwnas.search_spaces.vit.network import TokenHead, VisionTransformer, block, embedding
from hwnas.search_spaces.vit.steps import chosen_parts, part_table

__all__ = ["VitSpace", "vit"]


class VitSpace(SearchSpace):
    """Vision transformers; a smaller one has the first blocks, heads, channels and ranks.

    Choices with a single option are fixed and do not appear in `choices`.

    Args:
        config: What is elastic and what is fixed; AutoFormer-tiny's at 224 pixels if None.
    """

    name = "vit"

    def __init__(self, config: VitConfig | None = None) -> None:
        self.config = PRESETS["large"]((224, 224, 3)) if config is None else config

    @cached_property
    def _all_choices(self) -> dict[str, Choice]:
        config = self.config
        found = [
            Choice(name, getattr(config, name))
            for name in ("resolution", "patch_size", "width", "depth")
        ]
        of_blocks = {"heads": config.heads, "mlp_ratio": config.mlp_ratio}
        if config.rank:
            of_blocks["rank"] = config.rank
        for b in range(max(config.depth)):
            deep_enough = tuple(depth for depth in config.depth if depth > b)
            when = None if b < min(config.depth) else When("depth", deep_enough)
            found += [
                Choice(f"block{b}.{name}", options, when) for name, options in of_blocks.items()
            ]
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

    def build(self, architecture: Architecture) -> VisionTransformer:
        """A plain module: (N, C, H, W) float32 -> (N, outputs) float32."""
        config, values = self.config, self.check(architecture).as_dict()
        width, patch, side, depth = (
            int(self._option(values, name))
            for name in ("width", "patch_size", "resolution", "depth")
        )
        blocks: list[nn.Module] = []
        for b in range(depth):
            heads = int(self._option(values, f"block{b}.heads"))
            hidden = hidden_width(width, self._option(values, f"block{b}.mlp_ratio"))
            rank = self._option(values, f"block{b}.rank") if config.rank else None
            attention = Attention(width, heads, config.head_width, rank)
            blocks.append(block(width, attention, FeedForward(width, hidden, rank)))
        head = TokenHead(width, config.outputs, config.dropout)
        return VisionTransformer(embedding(config, width, patch, side), blocks, head)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`: attentions, perceptrons, and the rest as one part."""
        return self._part_table, chosen_parts(self.config, self._indices(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Blocks that are there."""
        return np.array(self.config.depth, dtype=np.int64)[self._indices(codes)["depth"]]

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
    resolution: tuple[int, ...] | None = None,
    position: Position | None = None,
    head_width: int | None = None,
    dropout: float | None = None,
) -> VitSpace:
    """The space of a recipe's ``[space] name = "vit"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"``
            (AutoFormer-tiny's), ``"low-rank"`` (for microcontrollers) or ``"deit-tiny"`` (that one
            network); chosen by the size of the images among the first three if None.
        depth: As in `VitConfig`, in place of the preset's; so are all that follow.
        width: Options for the channels of a token.
        heads: Options for each block's heads.
        mlp_ratio: Options for each block's hidden channels, as a multiple of the width.
        rank: Options for the rank of each block's linear layers, as a share of the full one.
        patch_size: Options for the side of a patch in pixels, decreasing.
        resolution: Options for the input's height and width, in pixels.
        position: ``"convolution"`` or ``"table"``.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        dropout: Probability before the last linear layer.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    side = max(image_shape[:2])
    automatic = "tiny" if side <= 16 else "small" if side <= 96 else "large"
    config = resolve("preset of space vit", preset or automatic, PRESETS)(image_shape)
    overrides = {
        "depth": depth,
        "width": width,
        "heads": heads,
        "mlp_ratio": mlp_ratio,
        "rank": rank,
        "patch_size": patch_size,
        "resolution": resolution,
        "position": position,
        "head_width": head_width,
        "dropout": dropout,
    }
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return VitSpace(
        dataclasses.replace(config, in_channels=image_shape[2], outputs=outputs, **given)
    )
