"""Files in int8 as networks in single precision, with the rounding of each layer told apart.

Compilers that have a form of their own for int8, and do not read ``QuantizeLinear`` and
``DequantizeLinear``, get the network and the rounding in two files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.onnx.graph import attributes_of, read_whole_model, store_constants

__all__ = ["RoundedLayer", "TensorGrid", "rounded_layers"]

_LAYERS = ("Conv", "Gemm", "MatMul")
_OTHERS = ("Add", "BatchNormalization", "ConvTranspose", "LayerNormalization", "Mul", "Sub")
_LOWEST, _HIGHEST = -128, 127


@dataclass(frozen=True)
class TensorGrid:
    """Values that a tensor is rounded to: ``scale * (step - zero)`` for steps of -128 to 127.

    Attributes:
        name: Name of the tensor in the network in single precision.
        scale: Distance of two values.
        zero: Step that stands for 0.
    """

    name: str
    scale: float
    zero: int


@dataclass(frozen=True)
class RoundedLayer:
    """Convolution or product whose input, weights and output are rounded to eight bits.

    Attributes:
        inputs: Grid of the input.
        weights: Distance of two weights, for each output channel; 0 stands for 0.
        outputs: Grids of the output before and after each node that a compiler may join with the
            layer, which are a bias and a ReLU; at least one.
    """

    inputs: TensorGrid
    weights: tuple[float, ...]
    outputs: tuple[TensorGrid, ...]


def rounded_layers(path: Path) -> tuple[Any, list[RoundedLayer]]:
    """Return a file in int8 as a network in single precision, and how its layers are rounded.

    A grid without negative values stands for a ReLU, which the quantiser leaves out; the network
    has it again, as a ``Relu`` after a convolution and as a ``Clip`` to the grid after others.
    Weights and biases keep their rounded values.

    Args:
        path: ONNX file in int8, as `hwnas.deploy.quantization.quantize` writes it.

    Returns:
        ONNX model, and the layers whose input, weights and output are all rounded.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return _Rewriting(read_whole_model(path)).result()


class _Rewriting:
    """Rewriting of one model, whose graph is changed."""

    def __init__(self, model: Any) -> None:
        from onnx import numpy_helper

        self._model = model
        graph = model.graph
        store_constants(graph)
        self._stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self._outputs = {output.name for output in graph.output}
        self._readers = _readers(graph.node)
        self._names: dict[str, str] = {}  # of tensors in the network in single precision
        self._read = set[str]()  # rounded tensors, by the names with which nodes read them
        self._grids: dict[str, TensorGrid] = {}  # by the names in single precision
        self._weights: dict[str, Any] = {}  # nodes that read rounded weights, by their results

    def result(self) -> tuple[Any, list[RoundedLayer]]:
        """Rewrite the graph, and return the model and its rounded layers."""
        kept = [node for node in self._model.graph.node if not self._removed(node)]
        rounding = [bool(node.input) and node.input[0] in self._read for node in kept]
        for node in kept:
            node.input[:] = [self._names.get(name, name) for name in node.input]
            node.output[:] = [self._names.get(name, name) for name in node.output]
        self._readers = _readers(kept)
        nodes = [made for node in kept for made in self._with_relu(node)]
        reading = [node for node, rounds in zip(kept, rounding, strict=True) if rounds]
        layers = [layer for node in reading if (layer := self._layer(node))]
        del self._model.graph.node[:]
        self._model.graph.node.extend(nodes)
        self._store(nodes)
        return self._model, layers

    def _removed(self, node: Any) -> bool:
        """Return whether a node only rounds, and note what it does."""
        if node.op_type == "QuantizeLinear":
            return self._quantises(node)
        if node.op_type != "DequantizeLinear":
            return False
        if node.output[0] in self._names:
            return True
        if any(name not in self._stored for name in node.input):
            return False
        values = self._dequantised(node)
        if values is None:
            return False
        self._weights[node.output[0]] = node
        self._stored[node.output[0]] = values
        return True

    def _quantises(self, node: Any) -> bool:
        """Return whether a tensor can be read in single precision by all that read its steps."""
        source, readers = node.input[0], self._readers.get(node.output[0], [])
        found = self._grid(node)
        if found is None or node.output[0] in self._outputs:
            return False
        if any(
            reader.op_type != "DequantizeLinear" or self._grid(reader) != found
            for reader in readers
        ):
            return False
        results = [reader.output[0] for reader in readers]
        name = self._names.get(source, source)
        for result in results:
            if result in self._outputs:
                name = self._names[source] = result
        self._names |= dict.fromkeys(results, name)
        self._read.update(results)
        self._grids[name] = TensorGrid(name, *found)
        return True

    def _grid(self, node: Any) -> tuple[float, int] | None:
        """Return scale and signed zero point of a rounding node; None if it has several."""
        scale = self._stored.get(node.input[1])
        zero = self._stored.get(node.input[2]) if len(node.input) > 2 else np.zeros(1, np.uint8)
        if scale is None or zero is None or scale.size != 1:
            return None
        if zero.dtype not in (np.dtype("uint8"), np.dtype("int8")):
            return None
        return float(scale.item()), int(zero.item()) - (128 if zero.dtype == np.uint8 else 0)

    def _dequantised(self, node: Any) -> NDArray[np.float32] | None:
        """Return rounded constants in single precision; None if they have scales for blocks."""
        steps, *given = (self._stored[name] for name in node.input)
        if any(each.ndim > 1 for each in given):
            return None
        shape = [1] * steps.ndim
        if given[0].size > 1:
            shape[_axis(node) % steps.ndim] = -1
        scale, *zero = (each.reshape(shape) for each in given)
        moved = steps.astype(np.int64) - (zero[0].astype(np.int64) if zero else 0)
        values: NDArray[np.float32] = (moved * scale).astype(np.float32).reshape(steps.shape)
        return values

    def _layer(self, node: Any) -> RoundedLayer | None:
        """Return how a node is rounded; None if not in all its parts."""
        if node.op_type not in _LAYERS or node.input[1] not in self._weights:
            return None
        inputs, outputs = self._grids[node.input[0]], self._after(node)
        weights = self._weights[node.input[1]]
        steps, scale, *zero = (self._stored[name] for name in weights.input)
        transposed = node.op_type == "MatMul" or (
            node.op_type == "Gemm" and not attributes_of(node).get("transB", 0)
        )
        axis = int(transposed)
        if not outputs or steps.dtype != np.int8 or np.any(zero):
            return None
        if scale.size > 1 and _axis(weights) % steps.ndim != axis:
            return None
        of_each = np.broadcast_to(scale.flatten(), steps.shape[axis])
        return RoundedLayer(inputs, tuple(float(each) for each in of_each), tuple(outputs))

    def _after(self, node: Any) -> list[TensorGrid]:
        """Return the grids of a node's output, and those after a bias and a ReLU that follow."""
        name = node.output[0]
        grid = self._grids.get(name)
        found = [] if grid is None else [grid]
        readers = self._readers.get(name, [])
        if len(readers) != 1 or name in self._outputs:
            return found
        [reader] = readers
        is_bias = reader.op_type == "Add" and any(each in self._stored for each in reader.input)
        return [*found, *self._after(reader)] if reader.op_type == "Relu" or is_bias else found

    def _with_relu(self, node: Any) -> Sequence[Any]:
        """Return a node, followed by the ReLU that its grid stands for."""
        from onnx import helper

        grid = self._grids.get(node.output[0])
        if node.op_type not in (*_LAYERS, *_OTHERS) or grid is None or grid.zero != _LOWEST:
            return [node]
        result, before = node.output[0], f"{node.output[0]}/before"
        kind, limits = "Relu", list[str]()
        if node.op_type != "Conv":
            ends = {f"{result}/0": 0.0, f"{result}/most": grid.scale * (_HIGHEST - grid.zero)}
            self._stored |= {name: np.array(end, np.float32) for name, end in ends.items()}
            kind, limits = "Clip", list(ends)
        node.output[0] = before
        self._grids[before] = replace(grid, name=before)
        relu = helper.make_node(kind, [before, *limits], [result], f"{result}/relu")
        self._readers[before] = [relu]
        return [node, relu]

    def _store(self, nodes: Sequence[Any]) -> None:
        """Store the constants that the nodes read, and no others."""
        from onnx import numpy_helper

        graph = self._model.graph
        used = {name for node in nodes for name in node.input} | self._outputs
        known = {each.name for each in graph.initializer}
        kept = [each for each in graph.initializer if each.name in used]
        kept += [
            numpy_helper.from_array(np.ascontiguousarray(value), name)
            for name, value in self._stored.items()
            if name in used - known
        ]
        del graph.initializer[:], graph.value_info[:]
        graph.initializer.extend(kept)


def _readers(nodes: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the nodes that read each tensor."""
    found: dict[str, list[Any]] = {}
    for node in nodes:
        for name in dict.fromkeys(node.input):
            found.setdefault(name, []).append(node)
    return found


def _axis(node: Any) -> int:
    return int(attributes_of(node).get("axis", 1))
