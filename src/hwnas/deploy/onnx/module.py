"""PyTorch module that runs the nodes of an ONNX file one after the other.

It covers the operators of image classifiers, segmenters and transformers exported from PyTorch. An
operator that is not covered is named in an error when the file is loaded, not when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.graph import attributes_of, check_graph, read_whole_model
from hwnas.deploy.onnx.node_names import foreign, in_words
from hwnas.deploy.onnx.operators import OPERATORS, Attributes
from hwnas.errors import ArtifactError, UnsupportedOperator

__all__ = ["Node", "OnnxModule"]

_ROUNDING = ("DequantizeLinear", "QuantizeLinear")


@dataclass(frozen=True)
class Node:
    """Operator call, which reads and writes tensors by name."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes

    def run(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Run the operator and return its outputs by name."""
        result = OPERATORS[self.kind](self.attributes, *arguments)
        results = result if isinstance(result, tuple | list) else (result,)
        return dict(zip(self.outputs, results, strict=False))


class OnnxModule(nn.Module):
    """Module that runs the nodes of an ONNX graph.

    Args:
        nodes: Nodes in the order of execution.
        constants: Weights and constants by name.
        input_name: Name of the only input.
        output_name: Name of the only output that is returned.
        input_shape: Sizes of the input without the batch.
        numbers: Constants that are plain Python values, by name: None, numbers and lists of
            integers.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        constants: Mapping[str, Tensor],
        input_name: str,
        output_name: str,
        input_shape: tuple[int, ...],
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.input_shape = input_shape
        self._input, self._output = input_name, output_name
        self._numbers = {"": None, **(numbers or {})}
        # Names in ONNX may contain dots; names of buffers may not.
        self._names = {name: f"constant{i}" for i, name in enumerate(constants)}
        for name, tensor in constants.items():
            self.register_buffer(self._names[name], tensor)
        self._nodes = tuple(nodes)
        last = {name: i for i, node in enumerate(nodes) for name in node.inputs}
        for name in (*self._names, *self._numbers, output_name):
            last.pop(name, None)
        self._done = [[name for name, end in last.items() if end == i] for i in range(len(nodes))]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes in the order of execution."""
        return self._nodes

    @property
    def constants(self) -> dict[str, Any]:
        """Weights, and constants that are plain Python values, by name."""
        return {name: getattr(self, own) for name, own in self._names.items()} | self._numbers

    @property
    def input_name(self) -> str:
        """Name of the only input."""
        return self._input

    @property
    def output_name(self) -> str:
        """Name of the only output that is returned."""
        return self._output

    @classmethod
    def load(cls, path: Path) -> OnnxModule:
        """Read an ONNX file with one input, whose sizes are all fixed except the batch.

        Raises:
            ArtifactError: The file is missing or damaged.
            UnsupportedOperator: The file has unknown operators; the message names all of them.
        """
        if not path.is_file():
            raise ArtifactError(f"there is no ONNX file {path}; give the path of an existing one")
        try:
            return cls._read(path)
        except ArtifactError:
            raise
        except Exception as error:  # errors of protobuf and onnx share no other base
            raise ArtifactError(
                f"{path} is not an intact ONNX file: {first_line(error)}"
            ) from error

    @classmethod
    def _read(cls, path: Path) -> OnnxModule:
        from onnx import numpy_helper

        check_graph(path)
        graph = read_whole_model(path).graph
        constants = {
            each.name: torch.from_numpy(np.array(numpy_helper.to_array(each)))
            for each in graph.initializer
        }
        if unknown := foreign(graph, [*OPERATORS, "Constant"]):
            raise UnsupportedOperator(
                f"{path} has operators that hwnas cannot run in PyTorch: {in_words(unknown)}; "
                "choose another runtime",
                unknown,
            )
        nodes = []
        for place, node in enumerate(graph.node):
            attributes = attributes_of(node)
            if node.op_type == "Constant":
                constants[node.output[0]] = _constant(attributes, numpy_helper.to_array)
                continue
            nodes.append(
                Node(
                    node.op_type,
                    tuple(node.input),
                    # Nodes are known by their first output, even if it has no name in the file.
                    tuple(name or f"unnamed/{place}/{i}" for i, name in enumerate(node.output)),
                    {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()},
                )
            )
        inputs = [each for each in graph.input if each.name not in constants]
        if len(inputs) != 1 or not graph.output:
            raise ArtifactError(f"{path} has {len(inputs)} inputs; expected one batch of images")
        sizes = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim][1:]
        if not sizes or not all(sizes):
            raise ArtifactError(f"{path}: all sizes of the input except the batch must be fixed")
        return cls(nodes, constants, inputs[0].name, graph.output[0].name, tuple(sizes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the output (N, ...) of inputs (N, *input_shape)."""
        values = {self._input: images}
        for node, done in zip(self._nodes, self._done, strict=True):
            values.update(node.run([self._value(name, values) for name in node.inputs]))
            for name in done:
                values.pop(name, None)
        output: Tensor = self._value(self._output, values)
        return output

    def _value(self, name: str, values: Mapping[str, Any]) -> Any:
        if name in self._names:
            return getattr(self, self._names[name])
        return self._numbers[name] if name in self._numbers else values[name]

    def frozen(self, batch: int) -> OnnxModule:
        """Return the module specialised to one batch size, so that compilers can trace it.

        Values that do not depend on pixels are computed now. Those that are numbers or lists of
        integers, such as the sizes of a reshape, become plain Python values. Quantised weights stay
        quantised.

        Args:
            batch: Images per run.
        """
        values: dict[str, Any] = {self._input: torch.zeros(batch, *self.input_shape)}
        fixed = self.constants
        left = []
        with torch.no_grad():
            for node in self._nodes:
                every = values | fixed
                results = node.run([every[name] for name in node.inputs])
                known = all(name in fixed for name in node.inputs)
                if node.kind == "Shape" or (known and node.kind != "DequantizeLinear"):
                    fixed |= results
                else:
                    values |= results
                    left.append(node)
        # A zero point stays a tensor, because its type is the type to round to.
        typed = {name for node in left if node.kind in _ROUNDING for name in node.inputs if name}
        numbers = {
            name: _plain(value)
            for name, value in fixed.items()
            if name not in typed and _is_plain(value)
        }
        used = {name for node in left for name in node.inputs} | {self._output}
        tensors = {n: v for n, v in fixed.items() if n in used and n not in numbers}
        return OnnxModule(left, tensors, self._input, self._output, self.input_shape, numbers)


def _is_plain(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return True
    return value.dim() == 0 or (value.dim() == 1 and not value.is_floating_point())


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _constant(attributes: Attributes, to_array: Callable[[Any], Any]) -> Tensor:
    if "value" in attributes:
        return torch.from_numpy(np.array(to_array(attributes["value"])))
    (value,) = attributes.values()
    return torch.tensor(value)
