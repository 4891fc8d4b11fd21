"""Reading of a quantised ONNX file as an integer network, node by node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hwnas.deploy.microcontroller.elementwise import PixelTable
from hwnas.deploy.microcontroller.network import IntegerNetwork
from hwnas.deploy.microcontroller.reading.building import IntegerNetworkBuilder
from hwnas.deploy.microcontroller.reading.functions import FUNCTIONS
from hwnas.deploy.microcontroller.reading.layers import LAYERS
from hwnas.deploy.microcontroller.reading.movements import MOVEMENTS
from hwnas.deploy.microcontroller.reading.normalising import NORMALISATIONS
from hwnas.deploy.microcontroller.reading.tensors import OnnxTensors
from hwnas.deploy.microcontroller.reading.windows import REDUCTIONS
from hwnas.deploy.microcontroller.values import IntegerGrid, OnnxValue, map_order, stored_index
from hwnas.deploy.onnx.graph import attributes_of, read_whole_model
from hwnas.deploy.onnx.node_names import block_of, in_words
from hwnas.errors import UnsupportedOperator

if TYPE_CHECKING:
    from hwnas.deploy.io import Preprocessing

__all__ = ["read_integer_network"]


def read_integer_network(
    path: Path, preprocessing: Preprocessing, join_tables: bool = True
) -> IntegerNetwork:
    """Read a network that `hwnas.deploy.quantization.quantize.quantize_int8` wrote.

    Args:
        path: ONNX file in QDQ format, with all operators quantised to eight bits.
        preprocessing: Conversion of pixels to the network's input.
        join_tables: Whether a function that alone reads the output of a layer becomes part of it.

    Raises:
        ArtifactError: The file is damaged, or a layer is not quantised.
        UnsupportedOperator: There is no integer version of an operator.
    """
    graph = read_whole_model(path).graph
    _check_operators(graph, path)
    return _network(graph, path, preprocessing, join_tables)


def _network(
    graph: Any, path: Path, preprocessing: Preprocessing, join_tables: bool
) -> IntegerNetwork:
    from onnx import numpy_helper

    how = preprocessing
    build = IntegerNetworkBuilder(path, (how.height, how.width, how.channels))
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    [pixels] = [each.name for each in graph.input if each.name not in arrays]
    tensors = OnnxTensors(build, arrays)
    tensors.note_grids(graph.node)
    for node in graph.node:
        build.layer = node.name
        if node.op_type == "DequantizeLinear":
            tensors.dequantised(node)
        elif node.op_type == "Shape":
            tensors.arrays[node.output[0]] = _shape(tensors, node)
        elif node.op_type == "QuantizeLinear" and node.input[0] == pixels:
            tensors.put(node.output[0], _from_pixels(build, how, tensors.grid_of(node)))
        else:
            tensors.put(node.output[0], _READERS[node.op_type](tensors, node))
    [output] = graph.output
    return build.network(build.in_order(tensors.value(output.name)), join_tables)


def _check_operators(graph: Any, path: Path) -> None:
    known = {"DequantizeLinear", "Shape", *_READERS}
    odd = [(node.op_type, block_of(node.name)) for node in graph.node if node.op_type not in known]
    if odd:
        operators = list(dict.fromkeys(odd))
        raise UnsupportedOperator(
            f"{path}: there is no integer version of {in_words(operators)}; build that "
            "block from other operators, or choose another format",
            operators,
        )


def _from_pixels(
    build: IntegerNetworkBuilder, preprocessing: Preprocessing, grid: IntegerGrid
) -> OnnxValue:
    """Return the preprocessed image, from a table of each channel."""
    how = preprocessing
    every = np.arange(256, dtype=np.uint8)[:, None, None, None]
    pixels = np.broadcast_to(every, (256, 1, 1, how.channels))
    real = how.at(1, 1)(np.ascontiguousarray(pixels)).numpy()[:, :, 0, 0]
    table = PixelTable(grid.nearest(real.T), math.prod(how.input_shape))
    return build.from_pixels(table, (1, *how.input_shape), map_order(), grid)


def _quantised(tensors: OnnxTensors, node: Any) -> OnnxValue:
    return tensors.build.on_grid(tensors.value(node.input[0]), tensors.grid_of(node))


def _shape(tensors: OnnxTensors, node: Any) -> Any:
    """Return the shape of a tensor for one image."""
    attributes = attributes_of(node)
    shape = tensors.value(node.input[0]).shape
    return np.array(shape[attributes.get("start", 0) : attributes.get("end")], np.int64)


def _movement(tensors: OnnxTensors, node: Any) -> OnnxValue:
    """Return values of a tensor in another arrangement."""
    value = tensors.value(node.input[0])
    try:
        index = MOVEMENTS[node.op_type](node, tensors.arrays, stored_index(value))
    except ValueError as error:
        raise tensors.build.fault(
            f"cannot rearrange one image of shape {value.shape}; was it exported for another "
            "batch size?"
        ) from error
    made = tensors.build.arranged(value, index, _orders(node, value, index.ndim))
    return tensors.build.on_grid(made, tensors.grid_or(node.output[0], tensors.build.grid(made)))


def _orders(node: Any, value: OnnxValue, rank: int) -> list[tuple[int, ...]]:
    """Return the orders in which a rearranged tensor may be stored, that of a copy last."""
    if node.op_type == "Slice":
        return [value.order]
    plain = tuple(range(rank))
    return [plain] if rank != 4 else [map_order(), plain]


_READERS: Mapping[str, Callable[[OnnxTensors, Any], OnnxValue]] = {
    "QuantizeLinear": _quantised,
    **LAYERS,
    **FUNCTIONS,
    **REDUCTIONS,
    **NORMALISATIONS,
    **dict.fromkeys(MOVEMENTS, _movement),
}
