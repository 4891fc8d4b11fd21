"""Graph of a network in single precision: who makes and reads each tensor, and its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import replacing
from hwnas.deploy.onnx.graph import attributes_of, messages, store_constants

__all__ = ["FloatGraph", "LinearLayer"]

_DATA, _WEIGHTS, _BIAS = range(3)  # places among the inputs of a layer


@dataclass(frozen=True)
class LinearLayer:
    """Layer that is linear in its first input, with constant weights.

    Attributes:
        weights: Name of its weights.
        bias: Name of its bias; empty if it has none.
        rows: Axis of the output channels among the axes of the weights.
        groups: Number of groups; each reads its own input channels.
        axis: Axis of the channels among those of the input and the output: 1 or the last one, -1.
    """

    weights: str
    bias: str
    rows: int
    groups: int
    axis: int


class FloatGraph:
    """ONNX model whose constants are arrays that can be changed.

    Graphs inside nodes, such as the branches of an ``If``, are left as they are, and so is all that
    they read. Constants of floating point that several nodes read are copied, so that each can be
    changed on its own.

    Args:
        path: ONNX file with one float32 input and inferred shapes.
        images: Some images (N, ...), to find the shapes of tensors; one is used, or as many as the
            network is for.
    """

    def __init__(self, path: Path, images: NDArray[np.float32]) -> None:
        import onnx
        from onnx import numpy_helper

        self.model = onnx.load(path)
        graph = self.model.graph
        store_constants(graph)
        found = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        # What nested graphs read stays as it is.
        nested = {name for node in graph.node for name in _nested_inputs(node)}
        self.constants = {name: value for name, value in found.items() if name not in nested}
        self._own_constants()
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.users: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                self.users.setdefault(name, []).append(node)
        self.outputs = {output.name for output in graph.output} | nested
        fixed = graph.input[0].type.tensor_type.shape.dim[0].dim_value
        values = self.values(images[: fixed or 1], list(self.makers))
        self.shapes = {name: value.shape for name, value in values.items()}

    def linear(self, node: Any) -> LinearLayer | None:
        """Return a node as a linear layer; None if it is none, or in a form not handled here."""
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            return None
        weights = self.constants.get(node.input[_WEIGHTS])
        bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
        if weights is None or node.input[_DATA] in self.constants:
            return None
        if bias and bias not in self.constants:
            return None
        given = attributes_of(node)
        if node.op_type == "Conv":
            return LinearLayer(node.input[_WEIGHTS], bias, 0, given.get("group", 1), 1)
        if weights.ndim != 2 or given.get("transA", 0) or given.get("beta", 1.0) != 1.0:
            return None
        if bias and self.constants[bias].shape != (weights.shape[given.get("transB", 0) - 1],):
            return None
        return LinearLayer(node.input[_WEIGHTS], bias, 0 if given.get("transB", 0) else 1, 1, -1)

    def values(self, images: NDArray[np.float32], names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the values of tensors for images (N, ...), with the constants as they are now."""
        import onnx
        from onnxruntime import InferenceSession

        if not names:  # ONNX Runtime would return all outputs
            return {}
        model = onnx.ModelProto()
        model.CopyFrom(self._with_constants())
        known = {output.name for output in model.graph.output}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in names if name not in known
        )
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(list(names), {self.source: images}), strict=True))

    @property
    def source(self) -> str:
        """Name of the input."""
        return str(self.model.graph.input[0].name)

    def write(self, to: Path) -> Path:
        """Write the model with the constants as they are now.

        Raises:
            StorageError: The file cannot be written.
        """
        import onnx

        with replacing(to) as temporary:
            onnx.save(self._with_constants(), temporary)
        return to

    def _with_constants(self) -> Any:
        from onnx import numpy_helper

        for each in self.model.graph.initializer:
            if each.name not in self.constants:
                continue
            each.CopyFrom(numpy_helper.from_array(self.constants[each.name], each.name))
        return self.model

    def _own_constants(self) -> None:
        """Make a copy of each constant of floating point for each further node that reads it."""
        graph, seen = self.model.graph, Counter[str]()
        stored = {each.name: each for each in graph.initializer}
        for index, node in enumerate(graph.node):
            for place, name in enumerate(node.input):
                seen[name] += 1
                if name not in stored or name not in self.constants or seen[name] == 1:
                    continue
                if self.constants[name].dtype == np.float32:
                    copy = graph.initializer.add()
                    copy.CopyFrom(stored[name])
                    copy.name = node.input[place] = f"{name}_of_node_{index}_{place}"
                    self.constants[copy.name] = self.constants[name]


def _nested_inputs(node: Any) -> list[str]:
    """Return the names that the graphs inside a node read."""
    inner = [each for each in messages(node, "NodeProto") if each is not node]
    return [name for each in inner for name in each.input]
