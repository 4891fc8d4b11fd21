"""Operator counts of SimpleNets, drafted layer by layer instead of traced."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.map_sizes import input_size, map_sizes
from hwnas.search_spaces.simplenet.config import SimpleNetConfig

__all__ = ["chosen_parts", "part_table"]

_ABSENT = 0


def part_table(config: SimpleNetConfig) -> PartTable:
    """Return operator counts: for each place no layer and every layer, and for each group its end.

    The end of a group is the max pooling, or the classifier after the last group. Layers are
    ordered by resolution, input channels and output channels; ends by resolution and channels.
    """
    places: list[list[Counter[OperatorSignature]]] = []
    for g, group in enumerate(config.groups):
        sizes = [
            map_sizes(input_size(resolution, config.aspect), [2] * g)[-1]
            for resolution in config.resolution
        ]
        for b, kernel_size in enumerate(group.kernel_size):
            layers = [
                OperatorCounter(inputs, *size).conv(outputs, kernel_size).steps
                for size in sizes
                for inputs in config.taken(g, b)
                for outputs in group.options(b)
            ]
            places.append([Counter(), *layers])
        ends = [OperatorCounter(channels, *size) for size in sizes for channels in config.given(g)]
        last = g == len(config.groups) - 1
        places.append([_after(end, config.outputs if last else 0) for end in ends])
    return PartTable.of(places)


def chosen_parts(config: SimpleNetConfig, indices: Indices) -> npt.NDArray[np.int64]:
    """Return the index of the chosen part of a `part_table` for each place, (N, places)."""
    resolution, columns = indices["resolution"], []
    channels = np.full(len(resolution), config.in_channels)
    for g, group in enumerate(config.groups):
        depth = np.array(group.depth)[indices[f"group{g}.depth"]]
        for b in range(len(group.channels)):
            inputs, options = np.array(config.taken(g, b)), np.array(group.options(b))
            width = indices[f"group{g}.layer{b}.width"]
            size = resolution * len(inputs) + np.searchsorted(inputs, channels)
            there = b < depth
            columns.append(np.where(there, 1 + size * len(options) + width, _ABSENT))
            channels = np.where(there, options[width], channels)
        ends = np.array(config.given(g))
        columns.append(resolution * len(ends) + np.searchsorted(ends, channels))
    return np.column_stack(columns)


def _after(end: OperatorCounter, outputs: int) -> Counter[OperatorSignature]:
    """Return the counts after a group: of the classifier if it has outputs, else of max pooling."""
    return (end.pool().linear(outputs) if outputs else end.simple("pool", stride=2)).steps
