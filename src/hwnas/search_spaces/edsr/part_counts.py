"""Operator counts of EDSR networks, derived block by block instead of traced."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.edsr.config import BodyBlock, EdsrConfig
from hwnas.search_spaces.edsr.network import body_block

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0


def part_table(config: EdsrConfig) -> PartTable:
    """Return the operator counts of the stem, of every possible block, and of the tail.

    Blocks are ordered by channels, kind and expansion, after an entry for no block.
    """
    stems = [
        _conv(OperatorCounter(config.in_channels, *config.input_size), channels).steps
        for channels in config.channels
    ]
    blocks = [
        _block(config, channels, kind, ratio)
        for channels in config.channels
        for kind in config.blocks
        for ratio in config.expand_ratio
    ]
    tails = [_tail(config, channels) for channels in config.channels]
    bodies = [[Counter[OperatorSignature](), *blocks]] * max(config.depth)
    return PartTable.of([stems, *bodies, tails])


def chosen_parts(config: EdsrConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    channels, depth = indices["channels"], np.array(config.depth)[indices["depth"]]
    kinds, ratios = len(config.blocks), len(config.expand_ratio)
    columns = [channels]
    for b in range(max(config.depth)):
        kind, ratio = indices[f"block{b}.kind"], indices[f"block{b}.expand_ratio"]
        part = 1 + (channels * kinds + kind) * ratios + ratio
        columns.append(np.where(b < depth, part, _ABSENT))
    return np.column_stack([*columns, channels])


def _conv(
    counter: OperatorCounter,
    channels: int,
    kernel_size: int = 3,
    groups: int = 1,
    activation: bool = False,
) -> OperatorCounter:
    return counter.conv(
        channels, kernel_size, groups=groups, activation=activation, norm=False, biased=True
    )


def _block(
    config: EdsrConfig, channels: int, kind: BodyBlock, ratio: float
) -> Counter[OperatorSignature]:
    if config.normalisation == "adaptive":
        make = partial(body_block, config, channels, kind, ratio)
        return traced_steps(make, (channels, *config.input_size))
    hidden = config.hidden_at(channels, ratio)
    block = OperatorCounter(channels, *config.input_size)
    if kind == "separable":
        _conv(block, hidden, 1, activation=True)
        _conv(block, hidden, groups=hidden, activation=True)
    else:
        _conv(block, hidden, activation=True)
    _conv(block, channels, 3 if kind == "dense" else 1)
    return block.simple("elementwise", inputs=2).steps


def _tail(config: EdsrConfig, channels: int) -> Counter[OperatorSignature]:
    height, width = config.input_size
    tail = OperatorCounter(channels, height, width)
    _conv(tail, config.outputs * config.upscale**2)
    if config.upscale > 1:
        tail.pixel_shuffle(config.upscale)
        if config.anchored:
            image = OperatorCounter(config.in_channels, height, width, steps=tail.steps)
            image.enlarge(tail.side, tail.width)
    return (tail.simple("elementwise", inputs=2) if config.anchored else tail).steps
