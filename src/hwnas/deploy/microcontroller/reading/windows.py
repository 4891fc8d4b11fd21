"""Reading of pooling, reductions and concatenation, and the windows of convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hwnas.deploy.microcontroller.axes import IntegerConcatenation, IntegerReduction
from hwnas.deploy.microcontroller.convolution import IntegerPooling, MapWindow
from hwnas.deploy.microcontroller.fixed_point import FixedPoint
from hwnas.deploy.microcontroller.reading.tensors import OnnxTensors
from hwnas.deploy.microcontroller.values import EVERY_INT8, OnnxValue, map_order
from hwnas.deploy.onnx.graph import attributes_of

__all__ = ["REDUCTIONS", "map_window"]


def map_window(
    attributes: Mapping[str, Any], size: Sequence[int], kernel: Sequence[int]
) -> tuple[MapWindow, bool]:
    """Return the window of a convolution or a pooling, and whether it is a single point.

    Args:
        attributes: Attributes of the node.
        size: Height and width of the input.
        kernel: Height and width of the kernel.
    """
    strides = attributes.get("strides", (1, 1))
    dilations = attributes.get("dilations", (1, 1))
    pads = attributes.get("pads", (0, 0, 0, 0))
    outputs = []
    for i in range(2):
        left = size[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1
        if attributes.get("ceil_mode", 0):
            # A window that would begin beyond the input is left out.
            left = min(left + strides[i] - 1, size[i] + pads[i] - 1)
        outputs.append(left // strides[i] + 1)
    pairs = size, outputs, kernel, strides, pads[:2], dilations
    window = MapWindow(*((int(each[0]), int(each[1])) for each in pairs))
    return window, window.kernel_size == window.stride == (1, 1) and not any(pads)


def _pooling(tensors: OnnxTensors, node: Any) -> OnnxValue:
    attributes = attributes_of(node)
    value = tensors.build.in_order(tensors.value(node.input[0]), map_order())
    kernel = attributes["kernel_shape"]
    window, _ = map_window(attributes, value.shape[2:], kernel)
    largest = node.op_type == "MaxPool"
    whole = largest or attributes.get("count_include_pad", 0) or window.padding == (0, 0)
    odd = window.dilation != (1, 1) or (attributes.get("ceil_mode", 0) and not largest)
    if odd or not whole:
        raise tensors.build.fault("is a pooling with dilation, ceil_mode or uncounted padding")
    before = tensors.build.grid(value)
    grid = tensors.grid_or(node.output[0], before) if largest else tensors.grid(node.output[0])
    operator = IntegerPooling(
        largest,
        FixedPoint(np.array(before.scale / grid.scale / math.prod(kernel))),
        (before.zero, before.zero if largest else grid.zero),
        value.shape[1],
        window,
    )
    shape = *value.shape[:2], *window.output_size
    made = tensors.build.add(operator, [value], shape, map_order(), before if largest else grid)
    return tensors.build.on_grid(made, grid)


def _reduction(tensors: OnnxTensors, node: Any) -> OnnxValue:
    value, attributes = tensors.value(node.input[0]), attributes_of(node)
    axes = _axes(tensors, node, attributes, len(value.shape))
    largest = node.op_type == "ReduceMax"
    before = tensors.build.grid(value)
    grid = tensors.grid_or(node.output[0], before) if largest else tensors.grid(node.output[0])
    kept = bool(attributes.get("keepdims", 1)) or node.op_type == "GlobalAveragePool"
    sizes = _reduced_sizes(tensors, value, axes)
    scale = FixedPoint(np.array(before.scale / grid.scale / sizes[1]))
    zeros = before.zero, before.zero if largest else grid.zero
    operator = IntegerReduction(largest, sizes, scale, zeros)
    remaining = [axis for axis in range(len(value.shape)) if axis not in axes]
    if kept:
        shape = tuple(1 if i in axes else size for i, size in enumerate(value.shape))
        order = value.order
    else:
        shape = tuple(value.shape[axis] for axis in remaining)
        order = tuple(remaining.index(axis) for axis in value.order if axis in remaining)
    made = tensors.build.add(operator, [value], shape, order, before if largest else grid)
    return tensors.build.on_grid(made, grid)


def _axes(tensors: OnnxTensors, node: Any, attributes: Mapping[str, Any], rank: int) -> set[int]:
    """Return the axes that a node reduces."""
    if node.op_type == "GlobalAveragePool":
        return set(range(2, rank))
    given = attributes.get("axes")
    if given is None and len(node.input) > 1:
        given = tensors.arrays[node.input[1]].tolist()
    return {axis % rank for axis in given} if given else set(range(1, rank))


def _reduced_sizes(tensors: OnnxTensors, value: OnnxValue, axes: set[int]) -> tuple[int, int, int]:
    """Return the number of values before, within and after axes that lie together in memory."""
    places = [i for i, axis in enumerate(value.order) if axis in axes]
    places = [i for i in places if value.stored[i] > 1] or places[:1]
    first, last = places[0], places[-1] + 1
    if places != list(range(first, last)):
        raise tensors.build.fault("reduces axes that do not lie together in memory")
    stored = value.stored
    return math.prod(stored[:first]), math.prod(stored[first:last]), math.prod(stored[last:])


def _concatenation(tensors: OnnxTensors, node: Any) -> OnnxValue:
    build = tensors.build
    first, *others = [tensors.value(name) for name in node.input]
    values = [first, *(build.in_order(each, first.order) for each in others)]
    axis = attributes_of(node)["axis"] % len(first.shape)
    place = first.order.index(axis)
    grid = tensors.grid_or(node.output[0], build.grid(first))
    befores = [build.grid(each) for each in values]
    tables = [
        None if before == grid else grid.nearest(before.real(EVERY_INT8)) for before in befores
    ]
    widths = tuple(math.prod(each.stored[place:]) for each in values)
    rows = math.prod(first.stored[:place])
    shape = [*first.shape]
    shape[axis] = sum(each.shape[axis] for each in values)
    operator = IntegerConcatenation(rows, widths, tuple(tables))
    return build.add(operator, values, tuple(shape), first.order, grid)


REDUCTIONS: Mapping[str, Callable[[OnnxTensors, Any], OnnxValue]] = {
    "AveragePool": _pooling,
    "Concat": _concatenation,
    "GlobalAveragePool": _reduction,
    "MaxPool": _pooling,
    "ReduceMax": _reduction,
    "ReduceMean": _reduction,
}
"""Readers of nodes by operator."""
