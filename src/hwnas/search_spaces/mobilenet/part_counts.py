"""Operator counts of MobileNets, drafted block by block instead of traced."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.dense_head import CHANNELS, dense_head_parts
from hwnas.search_spaces.layers import (
    Activation,
    hidden_channels,
    make_divisible,
    scaled_channels,
)
from hwnas.search_spaces.layers.deformable import DeformableDepthwise
from hwnas.search_spaces.map_sizes import Size, input_size, map_sizes
from hwnas.search_spaces.mobilenet.config import MobileNetConfig, Stage
from hwnas.search_spaces.mobilenet.operators import SKIP, BlockShape, block_shape

__all__ = ["chosen_parts", "part_table", "skipped"]

_ABSENT = 0


def part_table(config: MobileNetConfig) -> PartTable:
    """Return the operator counts of no block and every block for each place, then of all the rest.

    The rest of networks with a dense head is divided: the stem, each lateral layer, and the head.
    Blocks are ordered by width, resolution, kernel size and expansion ratio; where whole blocks are
    chosen, by width, resolution and operator.
    """
    sizes = [
        (width, map_sizes(input_size(resolution, config.aspect), config.strides))
        for width in config.width
        for resolution in config.resolution
    ]
    places: list[list[Counter[OperatorSignature]]] = []
    for s, stage in enumerate(config.stages):
        first: list[Counter[OperatorSignature]] = [Counter()]
        later: list[Counter[OperatorSignature]] = [Counter()]
        for width, maps in sizes:
            inputs, outputs = _channels(config, s, width)
            first += _blocks(stage, inputs, outputs, maps[1 + s], stage.stride)
            later += _blocks(stage, outputs, outputs, maps[2 + s], 1)
        places += [first, *[later] * (max(stage.depth) - 1)]
    if config.dense_head is None:
        rest = [_rest(config, width, maps[0], maps[-1]) for width, maps in sizes]
        return PartTable.of([*places, rest])
    stems = [_stem(config, width, maps[0]).steps for width, maps in sizes]
    used = [
        [(_channels(config, s, width)[1], maps[2 + s]) for s in config.pyramid]
        for width, maps in sizes
    ]
    return PartTable.of(
        [*places, stems, *dense_head_parts(config.dense_head, config.outputs, used)]
    )


def chosen_parts(config: MobileNetConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    size = indices["width"] * len(config.resolution) + indices["resolution"]
    columns = []
    for s, stage in enumerate(config.stages):
        depth = np.array(stage.depth)[indices[f"stage{s}.depth"]]
        for b in range(max(stage.depth)):
            block = size
            for name, options in stage.decisions.items():
                block = block * len(options) + indices[f"stage{s}.block{b}.{name}"]
            columns.append(np.where(b < depth, 1 + block, _ABSENT))
    if config.dense_head is not None:
        head = size * len(config.dense_head.channels) + indices[CHANNELS]
        return np.column_stack([*columns, size, *[head] * (len(config.pyramid) + 1)])
    return np.column_stack([*columns, size])


def skipped(config: MobileNetConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the number of blocks that are within the depth but skipped, (N,)."""
    blocks = np.zeros(len(indices["width"]), dtype=np.int64)
    for s, stage in enumerate(config.stages):
        if SKIP in stage.operators:
            depth = np.array(stage.depth)[indices[f"stage{s}.depth"]]
            skip = stage.operators.index(SKIP)
            for b in range(max(stage.depth)):
                blocks += (indices[f"stage{s}.block{b}.operator"] == skip) & (b < depth)
    return blocks


def _channels(config: MobileNetConfig, stage: int, width: float) -> tuple[int, int]:
    """Return the input and output channels of a stage."""
    before = config.stages[stage - 1].channels if stage else config.stem_channels
    return scaled_channels(before, width), scaled_channels(config.stages[stage].channels, width)


def _blocks(
    stage: Stage, inputs: int, outputs: int, size: Size, stride: int
) -> list[Counter[OperatorSignature]]:
    if stage.operators:
        sizes = (inputs, outputs, size, stride)
        return [_operator(stage, *sizes, block_shape(name)) for name in stage.operators]
    return [
        _block(stage, inputs, hidden_channels(inputs, ratio), outputs, size, kernel_size, stride)
        for kernel_size in stage.kernel_size
        for ratio in stage.expand_ratio
    ]


def _block(
    stage: Stage,
    inputs: int,
    hidden: int,
    outputs: int,
    size: Size,
    kernel_size: int,
    stride: int,
    groups: int = 1,
    always_expand: bool = False,
    deformable: bool = False,
) -> Counter[OperatorSignature]:
    """Return the operator counts of a `hwnas.search_spaces.layers.InvertedBottleneck`."""
    block = OperatorCounter(inputs, *size)
    if always_expand or hidden != inputs:
        block.conv(hidden, groups=groups)
    if groups > 1:
        block.shuffle()
    if deformable:
        block.traced(_deformable(hidden, size, stride, stage.activation), stride)
    else:
        block.conv(hidden, kernel_size, stride, groups=hidden)
    if stage.squeeze_excite:
        block.gate(make_divisible(hidden / 4), biased=True)
    block.conv(outputs, groups=groups, activation=False)
    if stride == 1 and inputs == outputs:
        block.simple("elementwise", inputs=2)
    return block.steps


@functools.cache
def _deformable(
    channels: int, size: Size, stride: int, activation: Activation
) -> Counter[OperatorSignature]:
    def make() -> DeformableDepthwise:
        return DeformableDepthwise(channels, stride, activation)

    return traced_steps(make, (channels, *size))


def _operator(
    stage: Stage, inputs: int, outputs: int, size: Size, stride: int, shape: BlockShape | None
) -> Counter[OperatorSignature]:
    """Return the operator counts of a block by its name, or of what replaces a skipped one."""
    if shape is not None:
        hidden, kernel_size = inputs * shape.expand_ratio, shape.kernel_size
        return _block(
            *(stage, inputs, hidden, outputs, size, kernel_size, stride, shape.groups),
            always_expand=True,
            deformable=shape.deformable,
        )
    if stride == 1 and inputs == outputs:
        return Counter()
    return OperatorCounter(inputs, *size).conv(outputs, 1, stride).steps


def _rest(
    config: MobileNetConfig, width: float, size: Size, head_size: Size
) -> Counter[OperatorSignature]:
    """Return the operator counts of stem, head and classifier."""
    stem = _stem(config, width, size)
    channels = scaled_channels(config.stages[-1].channels, width)
    head = OperatorCounter(channels, *head_size, steps=stem.steps)
    head.conv(scaled_channels(config.head_channels, width)).pool()
    if config.feature_channels:
        head.linear(scaled_channels(config.feature_channels, width), biased=config.feature_bias)
        head.simple("activation")
    return head.linear(config.outputs).steps


def _stem(config: MobileNetConfig, width: float, size: Size) -> OperatorCounter:
    """Return the counter after the stem."""
    stem = OperatorCounter(config.in_channels, *size)
    return stem.conv(scaled_channels(config.stem_channels, width), 3, config.stem_stride)
