"""Operator counts of decoder language models, composed of parts that are traced once each."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.decoder.config import DecoderConfig
from hwnas.search_spaces.decoder.network import causal_attention, embedding, head, perceptron

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0
Counts = Counter[OperatorSignature]


def part_table(config: DecoderConfig) -> PartTable:
    """Return the operator counts of attentions and perceptrons of each block, then of the rest.

    Parts are ordered by width, and heads or ratio, after an entry for no part.
    """
    (tokens,) = config.resolution
    attentions = [
        traced_steps(partial(causal_attention, config, width, heads), (tokens, width))
        for width, heads in itertools.product(config.width, config.heads)
    ]
    perceptrons = [
        traced_steps(partial(perceptron, config, width, ratio), (tokens, width))
        for width, ratio in itertools.product(config.width, config.mlp_ratio)
    ]
    rest = [
        traced_steps(partial(embedding, config, width), (1, 1, tokens))
        + traced_steps(partial(head, config, width), (tokens, width))
        for width in config.width
    ]
    absent: list[Counts] = [Counter()]
    blocks = [absent + attentions, absent + perceptrons] * max(config.depth)
    return PartTable.of([*blocks, rest])


def chosen_parts(config: DecoderConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    width, depth = indices["width"], np.array(config.depth)[indices["depth"]]
    columns = []
    for b in range(max(config.depth)):
        for name, options in (("heads", config.heads), ("mlp_ratio", config.mlp_ratio)):
            part = width * len(options) + indices[f"block{b}.{name}"]
            columns.append(np.where(b < depth, 1 + part, _ABSENT))
    return np.column_stack([*columns, width])
