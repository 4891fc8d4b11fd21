"""Operator counts of hierarchical vision transformers, composed of parts traced once each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.hiera.config import HieraConfig
from hwnas.search_spaces.hiera.network import attention, embedding, head, perceptron

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0
Counts = Counter[OperatorSignature]


def part_table(config: HieraConfig) -> PartTable:
    """Return the operator counts of attentions and perceptrons of each block, then of the rest.

    Parts are ordered by width, resolution, local stages, and heads or ratio, after an entry for no
    part.
    """
    places: list[list[Counts]] = []
    for stage, depths in enumerate(config.depth):
        firsts, laters = (_attentions(config, stage, first) for first in (True, False))
        perceptrons = _perceptrons(config, stage)
        for b in range(max(depths)):
            places += [laters if b else firsts, perceptrons]
    sizes = itertools.product(config.width, config.resolution)
    return PartTable.of([*places, [_rest(config, *size) for size in sizes]])


def chosen_parts(config: HieraConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    size = indices["width"] * len(config.resolution) + indices["resolution"]
    attends = size * len(config.local_stages) + indices["local_stages"]
    columns = []
    for stage, depths in enumerate(config.depth):
        depth = np.array(depths)[indices[f"stage{stage}.depth"]]
        for b in range(max(depths)):
            name = f"stage{stage}.block{b}"
            heads = attends * len(config.heads) + indices[f"{name}.heads"]
            ratio = size * len(config.mlp_ratio) + indices[f"{name}.mlp_ratio"]
            columns += [np.where(b < depth, 1 + part, _ABSENT) for part in (heads, ratio)]
    return np.column_stack([*columns, size])


def _attentions(config: HieraConfig, stage: int, first: bool) -> list[Counts]:
    before = stage - 1 if first and stage else stage
    return [Counter()] + [
        traced_steps(
            partial(attention, config, stage, first, width, local, heads),
            (_tokens(config, before, resolution), config.channels(before, width)),
        )
        for width, resolution, local, heads in itertools.product(
            config.width, config.resolution, config.local_stages, config.heads
        )
    ]


def _perceptrons(config: HieraConfig, stage: int) -> list[Counts]:
    return [Counter()] + [
        traced_steps(
            partial(perceptron, config, stage, width, ratio),
            (_tokens(config, stage, resolution), config.channels(stage, width)),
        )
        for width, resolution, ratio in itertools.product(
            config.width, config.resolution, config.mlp_ratio
        )
    ]


def _rest(config: HieraConfig, width: int, resolution: int) -> Counts:
    """Return the operator counts of embedding and head."""
    last = len(config.depth) - 1
    tokens = _tokens(config, last, resolution), config.channels(last, width)
    images = (config.in_channels, *config.size(resolution))
    return traced_steps(partial(embedding, config, width, resolution), images) + traced_steps(
        partial(head, config, width), tokens
    )


def _tokens(config: HieraConfig, stage: int, resolution: int) -> int:
    """Return the number of tokens in a stage."""
    return math.prod(config.grid(resolution)) >> 2 * stage
