"""Operator counts of hybrid networks, composed of parts that are traced once each."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.dense_head import CHANNELS, dense_head_parts
from hwnas.search_spaces.hybrid.config import HybridConfig
from hwnas.search_spaces.hybrid.network import attention, convolution, head, stem
from hwnas.search_spaces.layers import Context, scaled_channels
from hwnas.search_spaces.map_sizes import Size, input_size, map_sizes

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0

Parts = list[Counter[OperatorSignature]]


def part_table(config: HybridConfig) -> PartTable:
    """Return the operator counts of the parts of each block, then of all the rest.

    A block consists of an attention, a perceptron and a convolution, each of which may be absent;
    the first block of a stage has a convolution only. Parts are ordered by width, resolution and
    ratio, after an entry for no part. The rest of networks with a dense head is divided: the stem,
    each lateral layer, and the head.
    """
    places: list[Parts] = []
    for s, stage in enumerate(config.stages):
        first: Parts = [Counter()]
        context: list[Parts] = [[Counter()], [Counter()], [Counter()]]
        for width, resolution in itertools.product(config.width, config.resolution):
            inputs, outputs = _channels(config, s, width)
            maps = _maps(config, resolution)
            before, after = (inputs, *maps[s + 1]), (outputs, *maps[s + 2])
            for ratio in stage.expand_ratio:
                make = partial(convolution, stage, inputs, outputs, ratio, True)
                first.append(traced_steps(make, before))
                make = partial(convolution, stage, outputs, outputs, ratio, False)
                context[2].append(traced_steps(make, after))
            context[0].append(traced_steps(partial(attention, config, stage, outputs), after))
            context[1] += [
                traced_steps(partial(Context.perceptron, outputs, ratio), after)
                for ratio in stage.mlp_ratio
            ]
        places += [first, *context * (max(stage.depth) - 1)]
    sizes = list(itertools.product(config.width, config.resolution))
    stems = [_stem(config, *size) for size in sizes]
    if config.dense_head is None:
        rest = [s + _head(config, *size) for s, size in zip(stems, sizes, strict=True)]
        return PartTable.of([*places, rest])
    used = [
        [(_channels(config, s, width)[1], _maps(config, resolution)[2 + s]) for s in config.pyramid]
        for width, resolution in sizes
    ]
    return PartTable.of(
        [*places, stems, *dense_head_parts(config.dense_head, config.outputs, used)]
    )


def chosen_parts(config: HybridConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    size = indices["width"] * len(config.resolution) + indices["resolution"]
    nothing = np.zeros_like(size)
    columns = []
    for s, stage in enumerate(config.stages):
        depth = np.array(stage.depth)[indices[f"stage{s}.depth"]]
        convolutions, attentions = (
            np.array([kind in (part, "both") for kind in stage.blocks])
            for part in ("convolution", "attention")
        )
        for b in range(max(stage.depth)):
            name = f"stage{s}.block{b}"
            expand = size * len(stage.expand_ratio) + indices.get(f"{name}.expand_ratio", nothing)
            if b == 0:
                columns.append(1 + expand)
                continue
            perceptron = size * len(stage.mlp_ratio) + indices.get(f"{name}.mlp_ratio", nothing)
            kind = indices[f"{name}.kind"]
            mixes, convolves = (b < depth) & attentions[kind], (b < depth) & convolutions[kind]
            columns.append(np.where(mixes, 1 + size, _ABSENT))
            columns.append(np.where(mixes, 1 + perceptron, _ABSENT))
            columns.append(np.where(convolves, 1 + expand, _ABSENT))
    if config.dense_head is not None:
        head = size * len(config.dense_head.channels) + indices[CHANNELS]
        return np.column_stack([*columns, size, *[head] * (len(config.pyramid) + 1)])
    return np.column_stack([*columns, size])


def _maps(config: HybridConfig, resolution: int) -> list[Size]:
    """Return the sizes of the images, of each stage's input, and of the head's input."""
    return map_sizes(input_size(resolution, config.aspect), config.strides)


def _channels(config: HybridConfig, stage: int, width: float) -> tuple[int, int]:
    """Return the input and output channels of a stage."""
    before = config.stages[stage - 1].channels if stage else config.stem_channels
    return scaled_channels(before, width), scaled_channels(config.stages[stage].channels, width)


def _stem(config: HybridConfig, width: float, resolution: int) -> Counter[OperatorSignature]:
    images = (config.in_channels, *_maps(config, resolution)[0])
    return traced_steps(partial(stem, config, width), images)


def _head(config: HybridConfig, width: float, resolution: int) -> Counter[OperatorSignature]:
    size = _maps(config, resolution)[-1]
    _, channels = _channels(config, len(config.stages) - 1, width)
    return traced_steps(partial(head, config, width), (channels, *size))
