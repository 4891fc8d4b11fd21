"""Operators of ONNX that only arrange values of a tensor in another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.onnx.graph import attributes_of

__all__ = ["MOVEMENTS"]

Index = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]


def _reshaped(node: Any, arrays: Arrays, index: Index) -> Index:
    wanted = arrays[node.input[1]].tolist()
    copies = not attributes_of(node).get("allowzero", 0)
    return index.reshape([index.shape[i] if copies and not n else n for i, n in enumerate(wanted)])


def _flattened(node: Any, arrays: Arrays, index: Index) -> Index:
    axis = attributes_of(node).get("axis", 1)
    return index.reshape(math.prod(index.shape[:axis]), -1)


def _transposed(node: Any, arrays: Arrays, index: Index) -> Index:
    return index.transpose(attributes_of(node)["perm"])


def _squeezed(node: Any, arrays: Arrays, index: Index) -> Index:
    axes = arrays[node.input[1]].tolist() if len(node.input) > 1 else None
    return index.squeeze(None if axes is None else tuple(axes))


def _unsqueezed(node: Any, arrays: Arrays, index: Index) -> Index:
    return np.expand_dims(index, tuple(arrays[node.input[1]].tolist()))


def _sliced(node: Any, arrays: Arrays, index: Index) -> Index:
    starts, ends = (arrays[name].tolist() for name in node.input[1:3])
    given = [arrays[name].tolist() if name else None for name in node.input[3:5]]
    axes, steps = [*given, None, None][:2]
    slices = [slice(None)] * index.ndim
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        slices[axis] = slice(starts[i], ends[i], 1 if steps is None else steps[i])
    return index[tuple(slices)]


def _same(node: Any, arrays: Arrays, index: Index) -> Index:
    return index


MOVEMENTS: Mapping[str, Callable[[Any, Arrays, Index], Index]] = {
    "Reshape": _reshaped,
    "Flatten": _flattened,
    "Transpose": _transposed,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Identity": _same,
    "Slice": _sliced,
}
"""For each operator, the arrangement of the places of a tensor's values, given the constant inputs
of the graph by name. A ValueError is raised for shapes that do not fit."""
