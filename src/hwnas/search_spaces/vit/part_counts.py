"""Operator counts of vision transformers, composed of parts that are traced once each."""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.layers import Attention, FeedForward, PreNorm, TokenMerging
from hwnas.search_spaces.vit.config import VitConfig, hidden_width
from hwnas.search_spaces.vit.network import embedding, head

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0
Counts = Counter[OperatorSignature]


def part_table(config: VitConfig) -> PartTable:
    """Return the operator counts of attentions and perceptrons of each block, embedding and head.

    Parts are ordered by width, patch size, resolution, share of merged tokens, heads or ratio, and
    rank, after an entry for no part. Merging counts as part of a perceptron. Heads are ordered by
    depth last.
    """
    sizes = list(itertools.product(config.width, config.patch_size, config.resolution))

    @functools.cache
    def attention(width: int, tokens: int, heads: int, rank: float | None) -> Counts:
        return traced_steps(
            lambda: PreNorm(width, Attention(width, heads, config.head_width, rank)),
            (tokens, width),
        )

    @functools.cache
    def feed_forward(width: int, tokens: int, ratio: float, rank: float | None) -> Counts:
        hidden = hidden_width(width, ratio)
        return traced_steps(
            lambda: PreNorm(width, FeedForward(width, hidden, rank)), (tokens, width)
        )

    @functools.cache
    def merging(width: int, tokens: int, share: float) -> Counts:
        return traced_steps(lambda: TokenMerging(share), (tokens, width))

    @functools.cache
    def of_head(width: int, tokens: int) -> Counts:
        return traced_steps(lambda: head(config, width), (tokens, width))

    places: list[list[Counts]] = []
    for b in range(max(config.depth)):
        attentions, perceptrons = [Counts()], [Counts()]
        for (width, patch, resolution), share in itertools.product(sizes, config.merging):
            before, after = config.tokens(resolution, patch, share)[b : b + 2]
            attentions += [
                attention(width, before, heads, rank)
                for heads, rank in itertools.product(config.heads, config.ranks)
            ]
            merged = merging(width, before, share) if share else Counts()
            perceptrons += [
                merged + feed_forward(width, after, ratio, rank)
                for ratio, rank in itertools.product(config.mlp_ratio, config.ranks)
            ]
        places += [attentions, perceptrons]
    heads = [
        of_head(width, config.tokens(resolution, patch, share)[depth])
        for (width, patch, resolution), share, depth in itertools.product(
            sizes, config.merging, config.depth
        )
    ]
    return PartTable.of([*places, [_embedding(config, *size) for size in sizes], heads])


def chosen_parts(config: VitConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    size = indices["width"] * len(config.patch_size) + indices["patch_size"]
    size = size * len(config.resolution) + indices["resolution"]
    merged = size * len(config.merging) + indices["merging"]
    depth = np.array(config.depth)[indices["depth"]]
    columns = []
    for b in range(max(config.depth)):
        for name, options in (("heads", config.heads), ("mlp_ratio", config.mlp_ratio)):
            part = merged * len(options) + indices[f"block{b}.{name}"]
            part = part * len(config.ranks) + indices.get(f"block{b}.rank", 0)
            columns.append(np.where(b < depth, 1 + part, _ABSENT))
    return np.column_stack([*columns, size, merged * len(config.depth) + indices["depth"]])


def _embedding(config: VitConfig, width: int, patch: int, resolution: int) -> Counts:
    return traced_steps(
        lambda: embedding(config, width, patch, resolution),
        (config.in_channels, *config.size(resolution, patch)),
    )
