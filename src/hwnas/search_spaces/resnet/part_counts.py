"""Operator counts of ResNets, derived block by block instead of traced."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.dense_head import CHANNELS, dense_head_parts
from hwnas.search_spaces.map_sizes import Size, input_size, map_sizes
from hwnas.search_spaces.resnet.config import ResNetConfig, ResNetStage

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0


def part_table(config: ResNetConfig) -> PartTable:
    """Return the operator counts of the stem, of every possible block, and of the classifier.

    In place of the classifier, a dense head has a part for each lateral layer and one for itself.
    First blocks of stages are ordered by resolution, input width, own width and expansion; later
    ones by resolution, width and expansion, after an entry for no block.
    """
    sizes = [
        map_sizes(input_size(resolution, config.aspect), config.strides)
        for resolution in config.resolution
    ]
    places = [[_stem(config, maps[0], width) for maps in sizes for width in config.width]]
    before = [config.stem_at(width) for width in config.width]
    for s, stage in enumerate(config.stages):
        first, later = [], [Counter[OperatorSignature]()]
        for maps in sizes:
            for inputs in before:
                first += _blocks(stage, config.width, maps[2 + s], inputs)
            later += _blocks(stage, config.width, maps[3 + s])
        places += [first, *[later] * (max(stage.depth) - 1)]
        before = [stage.channels_at(width) for width in config.width]
    if config.dense_head is not None:
        used = [
            [(config.stages[s].channels_at(width), maps[3 + s]) for s in config.pyramid]
            for maps in sizes
            for width in config.width
        ]
        return PartTable.of([*places, *dense_head_parts(config.dense_head, config.outputs, used)])
    places.append(
        [_classifier(config, maps[-1], channels) for maps in sizes for channels in before]
    )
    return PartTable.of(places)


def chosen_parts(config: ResNetConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    widths, resolution = len(config.width), indices["resolution"]
    before = indices["stem.width"]
    columns = [resolution * widths + before]
    for s, stage in enumerate(config.stages):
        ratios, depth = len(stage.expand_ratio), np.array(stage.depth)[indices[f"stage{s}.depth"]]
        width = indices[f"stage{s}.width"]
        for b in range(max(stage.depth)):
            ratio = indices[f"stage{s}.block{b}.expand_ratio"]
            if b == 0:
                columns.append(((resolution * widths + before) * widths + width) * ratios + ratio)
                continue
            block = 1 + (resolution * widths + width) * ratios + ratio
            columns.append(np.where(b < depth, block, _ABSENT))
        before = width
    if config.dense_head is not None:
        # A lateral layer depends on the width of its own stage, the head on no width.
        own = [indices[f"stage{s}.width"] for s in config.pyramid]
        pyramid = len(config.dense_head.channels)
        columns += [
            (resolution * widths + width) * pyramid + indices[CHANNELS]
            for width in (*own, np.zeros_like(resolution))
        ]
        return np.column_stack(columns)
    return np.column_stack([*columns, resolution * widths + before])


def _stem(config: ResNetConfig, size: Size, width: float) -> Counter[OperatorSignature]:
    stem = OperatorCounter(config.in_channels, *size)
    stem.conv(config.stem_at(width), config.stem_kernel_size, config.stem_stride)
    return (stem.simple("pool", stride=config.strides[1]) if config.stem_pool else stem).steps


def _blocks(
    stage: ResNetStage, widths: tuple[float, ...], size: Size, inputs: int | None = None
) -> list[Counter[OperatorSignature]]:
    """Return all first blocks of a stage that take ``inputs`` channels; all later ones if None."""
    return [
        _block(stage, size, inputs, stage.hidden_at(width, ratio), stage.channels_at(width))
        for width in widths
        for ratio in stage.expand_ratio
    ]


def _block(
    stage: ResNetStage, size: Size, inputs: int | None, hidden: int, outputs: int
) -> Counter[OperatorSignature]:
    """Return the operator counts of a block of `hwnas.search_spaces.layers`."""
    stride = 1 if inputs is None else stage.stride
    block = OperatorCounter(inputs or outputs, *size)
    if stage.block in ("fused", "inverted"):
        residual = stride == 1 and inputs in (None, outputs)
        if stage.block == "fused":
            block.conv(hidden, 3, stride)
        else:
            block.conv(hidden).conv(hidden, 3, stride, groups=hidden)
        block.conv(outputs, activation=False)
        return (block.simple("elementwise", inputs=2) if residual else block).steps
    if stage.block == "basic":
        block.conv(hidden, 3, stride).conv(outputs, 3, activation=False)
    else:
        block.conv(hidden).conv(hidden, 3, stride).conv(outputs, activation=False)
    if inputs is not None:
        shortcut = OperatorCounter(inputs, *size, steps=block.steps)
        shortcut.conv(outputs, 1, stride, activation=False)
    return block.simple("elementwise", inputs=2).simple("activation").steps


def _classifier(config: ResNetConfig, size: Size, channels: int) -> Counter[OperatorSignature]:
    return OperatorCounter(channels, *size).pool().linear(config.outputs).steps
