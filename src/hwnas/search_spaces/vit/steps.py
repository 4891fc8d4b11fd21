"""Operator counts of vision transformers, composed of parts that are traced once each."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.layers import Attention, FeedForward, PreNorm
from hwnas.search_spaces.vit.config import VitConfig, hidden_width
from hwnas.search_spaces.vit.network import embedding, head

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0


def part_table(config: VitConfig) -> PartTable:
    """Return the operator counts of attentions and perceptrons of each block, then of the rest.

    Parts are ordered by width, patch size, resolution, heads or ratio, and rank, after an entry for
    no part.
    """
    sizes = list(itertools.product(config.width, config.patch_size, config.resolution))

    @functools.cache
    def attention(
        width: int, tokens: int, heads: int, rank: float | None
    ) -> Counter[OperatorSignature]:
        return traced_steps(
            lambda: PreNorm(width, Attention(width, heads, config.head_width, rank)),
            (tokens, width),
        )

    @functools.cache
    def feed_forward(
        width: int, tokens: int, ratio: float, rank: float | None
    ) -> Counter[OperatorSignature]:
        hidden = hidden_width(width, ratio)
        return traced_steps(
            lambda: PreNorm(width, FeedForward(width, hidden, rank)), (tokens, width)
        )

    attentions: list[Counter[OperatorSignature]] = [Counter()]
    perceptrons: list[Counter[OperatorSignature]] = [Counter()]
    for width, patch, resolution in sizes:
        tokens = math.prod(config.grid(resolution, patch))
        attentions += [
            attention(width, tokens, heads, rank)
            for heads, rank in itertools.product(config.heads, config.ranks)
        ]
        perceptrons += [
            feed_forward(width, tokens, ratio, rank)
            for ratio, rank in itertools.product(config.mlp_ratio, config.ranks)
        ]
    rest = [_rest(config, *size) for size in sizes]
    return PartTable.of([*[attentions, perceptrons] * max(config.depth), rest])


def chosen_parts(config: VitConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    size = indices["width"] * len(config.patch_size) + indices["patch_size"]
    size = size * len(config.resolution) + indices["resolution"]
    depth = np.array(config.depth)[indices["depth"]]
    columns = []
    for b in range(max(config.depth)):
        for name, options in (("heads", config.heads), ("mlp_ratio", config.mlp_ratio)):
            part = size * len(options) + indices[f"block{b}.{name}"]
            part = part * len(config.ranks) + indices.get(f"block{b}.rank", 0)
            columns.append(np.where(b < depth, 1 + part, _ABSENT))
    return np.column_stack([*columns, size])


def _rest(config: VitConfig, width: int, patch: int, resolution: int) -> Counter[OperatorSignature]:
    """Return the operator counts of embedding and head."""
    tokens = math.prod(config.grid(resolution, patch))
    return traced_steps(
        lambda: embedding(config, width, patch, resolution),
        (config.in_channels, *config.size(resolution)),
    ) + traced_steps(lambda: head(config, width), (tokens, width))
