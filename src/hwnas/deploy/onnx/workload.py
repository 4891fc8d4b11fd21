"""Workload of any ONNX file, also of networks that hwnas did not build."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.early_exit import noted_exit, without_branch
from hwnas.deploy.onnx.graph import read_whole_model
from hwnas.errors import ArtifactError
from hwnas.search_spaces import (
    NetworkOperator,
    OperatorCountTable,
    OperatorKind,
    TensorSpec,
    Workload,
)
from hwnas.search_spaces.cost_model.workload import flag_dead
from hwnas.search_spaces.early_exit import EarlyExitWorkload

__all__ = ["OnnxWorkload", "read_workload"]

_KINDS: dict[str, OperatorKind] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "Einsum", "Attention"), "matmul"),
    "Gemm": "linear",
    "BatchNormalization": "norm",
    **dict.fromkeys(
        ("LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization",
         "LRN"),
        "layer_norm",
    ),
    **dict.fromkeys(
        ("Relu", "HardSwish", "HardSigmoid", "Sigmoid", "Clip", "Gelu", "Tanh", "Softmax", "Elu",
         "LeakyRelu", "PRelu", "Selu", "Erf", "Exp", "Log", "Sqrt", "Softplus", "Mish", "Celu",
         "LogSoftmax", "Swish", "QuickGelu"),
        "activation",
    ),
    **dict.fromkeys(
        ("Add", "Mul", "Sub", "Div", "Pow", "Concat", "Neg", "Abs", "Max", "Min", "Where", "Cast",
         "QuantizeLinear", "DequantizeLinear", "Expand", "Sum", "Pad", "Tile", "Gather", "Resize",
         "Equal", "Greater", "GreaterOrEqual", "Less", "Reciprocal", "Floor", "Ceil", "Round",
         "Transpose", "DepthToSpace", "SpaceToDepth"),
        "elementwise",
    ),
    **dict.fromkeys(
        ("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum",
         "ReduceMax", "ArgMax"),
        "pool",
    ),
    **dict.fromkeys(
        ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Split", "Shape",
         "Dropout", "Constant", "ConstantOfShape", "Range", "Size"),
        "view",
    ),
}  # fmt: skip
_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "DeformConv")
_RECURRENT = ("LSTM", "GRU", "RNN")
_KNOWN = (*_KINDS, *_CONVOLUTIONS, *_RECURRENT)
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 16: 16}


@dataclass(frozen=True)
class OnnxWorkload:
    """Workload of an ONNX file, with the nodes that its operators come from.

    Attributes:
        workload: Operators of the file.
        unknown: Number of operators of each unknown type. They have the kind ``"other"``, the bytes
            that they move, and no multiply-accumulates.
        batch: Batch size of the workload: the file's own, or the requested one.
        nodes: Name of each operator's node in the file.
        written: Name of the first tensor that each operator writes.
    """

    workload: Workload
    unknown: Mapping[str, int] = field(default_factory=dict)
    batch: int = 1
    nodes: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    @property
    def steps(self) -> OperatorCountTable:
        """Counts of the network's steps for one image, as a table of one network."""
        return OperatorCountTable.of_workloads([self.workload]).per_image(self.batch)


def read_workload(
    path: Path, batch: int = 1, input_shape: tuple[int, ...] | None = None
) -> OnnxWorkload:
    """Read the operators of an ONNX file without running it.

    With an early exit, they are those of the whole network, and the workload is one with an exit.

    Args:
        path: ONNX file.
        batch: Batch size that replaces a dynamic batch, at least 1.
        input_shape: Sizes of the input without the batch, if the file leaves some open.

    Raises:
        ArtifactError: The file is missing or damaged, or a size cannot be inferred.
    """
    if not path.is_file():
        raise ArtifactError(f"there is no ONNX file {path}; give the path of an existing one")
    try:
        read = read_whole_model(path)
        early_exit, model = noted_exit(path, read), without_branch(read)
        inputs = _network_inputs(model.graph)
        for value in inputs:
            _fix_shape(path, value, batch, input_shape if len(inputs) == 1 else None)
        graph = _with_shapes(_without_old_shapes(model))
    except ArtifactError:
        raise
    except Exception as error:  # errors of protobuf and onnx share no other base
        reason = first_line(error)
        raise ArtifactError(f"{path} is not an ONNX file: {reason}") from error
    found = _Reader(path, graph).read()
    if early_exit is None or not early_exit.share:
        return found
    return replace(found, workload=_with_exit(found.workload, early_exit.share))


def _with_exit(workload: Workload, share: float) -> EarlyExitWorkload:
    """Return the workload of a network whose last operator chooses between exit and end."""
    [choice] = [each for each in workload.operators if workload.outputs[0] in each.outputs]
    leaves, early, _ = choice.inputs
    return EarlyExitWorkload.of(workload, [early, leaves], share)


def _network_inputs(graph: Any) -> list[Any]:
    weights = {each.name for each in graph.initializer}
    return [each for each in graph.input if each.name not in weights]


def _fix_shape(path: Path, value: Any, batch: int, given: tuple[int, ...] | None) -> None:
    """Replace symbolic sizes by numbers; the first size is the batch."""
    sizes = value.type.tensor_type.shape.dim
    if given is not None and len(given) != len(sizes) - 1:
        raise ArtifactError(
            f"{path}: input {value.name} has {len(sizes) - 1} sizes besides the batch, but "
            f"{len(given)} were given: {'x'.join(map(str, given))}"
        )
    for place, size in enumerate(sizes):
        if size.HasField("dim_value") and size.dim_value > 0:
            if place and given is not None and given[place - 1] != size.dim_value:
                raise ArtifactError(
                    f"{path}: size {place} of input {value.name} is {size.dim_value}, not "
                    f"{given[place - 1]}"
                )
        elif place == 0:
            size.dim_value = batch
        elif given is not None:
            size.dim_value = given[place - 1]
        else:
            raise ArtifactError(
                f"{path}: size {place} of input {value.name} is dynamic ({size.dim_param or '?'}); "
                "give the sizes without the batch, e.g. --input 3x224x224"
            )


def _without_old_shapes(model: Any) -> Any:
    """Delete recorded shapes, since their symbolic sizes would hide the inferred sizes."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def _with_shapes(model: Any) -> Any:
    """Return the graph with the shapes of all tensors that can be inferred.

    The output of an operator of unknown type is assumed to have the shape of its first input.
    """
    import onnx

    named = copy.deepcopy(model)
    for node in named.graph.node:
        if not onnx.defs.has(node.op_type, node.domain):
            del node.attribute[:], node.input[1:], node.output[1:]
            node.op_type, node.domain = "Identity", ""
    graph = onnx.shape_inference.infer_shapes(named, strict_mode=False, data_prop=True).graph
    del graph.node[:]
    graph.node.extend(model.graph.node)
    return graph


class _Reader:
    """Converter of the nodes of one graph to operators."""

    def __init__(self, path: Path, graph: Any) -> None:
        self._path, self._graph = path, graph
        self._weights = {each.name: each for each in graph.initializer}
        self._shapes = {
            value.name: value.type.tensor_type
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self._tensors: list[TensorSpec] = []
        self._ids: dict[str, int] = {}

    def read(self) -> OnnxWorkload:
        for value in _network_inputs(self._graph):
            self._id(value.name, "input")
        operators = []
        nodes = []
        unknown: Counter[str] = Counter()
        for node in self._graph.node:
            if node.op_type == "Constant":
                self._constant(node)
                continue
            operator = self._operator(node)
            if node.op_type not in _KNOWN:
                unknown[node.op_type] += 1
            operators.append(operator)
            nodes.append(node)
        outputs = tuple(self._ids[value.name] for value in self._graph.output)
        flagged = flag_dead(operators, set(outputs))
        params = sum(math.prod(w.dims) for w in self._weights.values() if len(w.dims))
        workload = Workload(flagged, tuple(self._tensors), outputs, params)
        shapes = [self._shape(value.name)[0] for value in _network_inputs(self._graph)]
        batch = shapes[0][0] if shapes and shapes[0] else 1
        names = tuple(node.name or node.output[0] for node in nodes)
        return OnnxWorkload(workload, unknown, batch, names, tuple(n.output[0] for n in nodes))

    def _id(self, name: str, role: Any) -> int:
        if name not in self._ids:
            shape, bits = self._shape(name)
            self._ids[name] = len(self._tensors)
            self._tensors.append(TensorSpec(len(self._tensors), shape, role, bits))
        return self._ids[name]

    def _shape(self, name: str) -> tuple[tuple[int, ...], int]:
        if name in self._weights:
            weight = self._weights[name]
            return tuple(weight.dims), _BITS.get(weight.data_type, 32)
        found = self._shapes.get(name)
        sizes = [] if found is None else list(found.shape.dim)
        if (
            found is None
            or not found.HasField("shape")
            or not all(size.HasField("dim_value") for size in sizes)
        ):
            raise ArtifactError(
                f"{self._path}: the size of {name!r} depends on values of other tensors, so its "
                "cost is unknown; export the model with fixed sizes"
            )
        return tuple(size.dim_value for size in sizes), _BITS.get(found.elem_type, 32)

    def _constant(self, node: Any) -> None:
        (attribute,) = node.attribute
        self._ids[node.output[0]] = len(self._tensors)
        shape = tuple(attribute.t.dims) if attribute.name == "value" else ()
        self._tensors.append(TensorSpec(len(self._tensors), shape, "weight"))

    def _operator(self, node: Any) -> NetworkOperator:
        attributes = {each.name: each for each in node.attribute}
        inputs = tuple(
            self._id(name, "weight" if name in self._weights else "activation")
            for name in node.input
            if name
        )
        written = [name for name in node.output if name]
        if node.op_type not in _KNOWN:
            written = written[:1]
        outputs = tuple(self._id(name, "activation") for name in written)
        shape = self._tensors[outputs[0]].shape
        if node.op_type in _CONVOLUTIONS:
            return self._convolution(node, attributes, inputs, outputs)
        kind = _KINDS.get(node.op_type, "other")
        macs = 0
        if kind in ("linear", "matmul"):
            last = self._tensors[inputs[0]].shape
            transposed = "transA" in attributes and attributes["transA"].i
            macs = math.prod(shape) * (last[-2] if transposed else last[-1])
        elif node.op_type in _RECURRENT:
            read, *weights = (self._tensors[each].shape for each in inputs[:3])
            macs = math.prod(read[:2]) * sum(map(math.prod, weights))
        elif node.op_type == "Mul":
            macs = math.prod(shape)
        name = node.op_type.lower()
        return NetworkOperator(kind, name, inputs, outputs, macs, in_place=kind == "view")

    def _convolution(
        self, node: Any, attributes: Mapping[str, Any], inputs: tuple[int, ...], outputs: Any
    ) -> NetworkOperator:
        # The weight of a quantised convolution is its fourth input.
        weight = self._tensors[inputs[3 if node.op_type == "QLinearConv" else 1]].shape
        groups = attributes["group"].i if "group" in attributes else 1
        transposed = node.op_type == "ConvTranspose"
        kind: OperatorKind = "conv"
        if groups == weight[0] and weight[1] == 1:
            kind = "depthwise"
        elif groups == 1 and math.prod(weight[2:]) == 1:
            kind = "pointwise"
        met = self._tensors[inputs[0] if transposed else outputs[0]].shape
        stride = attributes["strides"].ints[0] if "strides" in attributes else 1
        macs = math.prod(met) * math.prod(weight[1:])
        name = "convolution"
        if node.op_type == "DeformConv":  # its time is not that of a convolution
            kind, name = "other", "deform_conv2d"
        return NetworkOperator(kind, name, inputs, outputs, macs, weight[2], stride)
