"""An ONNX file as a PyTorch module that runs its nodes one after the other.

Covers what image classifiers, segmenters and transformers exported from PyTorch are made of. What
is not covered is refused by name when the file is loaded, not when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.deploy.first_line import first_line
from hwnas.deploy.operators import foreign, in_words
from hwnas.errors import ArtifactError, UnsupportedOperator

__all__ = ["OPERATORS", "OnnxModule"]

Attributes = Mapping[str, Any]
Operator = Callable[..., Any]
"""Takes attributes and inputs, and gives a tensor, or several."""


@dataclass(frozen=True)
class Node:
    """One step: reads and writes tensors by name."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes

    def run(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """What it computes, by name."""
        result = OPERATORS[self.kind](self.attributes, *arguments)
        results = result if isinstance(result, tuple | list) else (result,)
        return dict(zip(self.outputs, results, strict=False))


class OnnxModule(nn.Module):
    """Runs the nodes of an ONNX graph.

    Args:
        nodes: In the order of execution.
        constants: Weights and constants by name.
        input_name: Of the only input.
        output_name: Of the only output that is returned.
        input_shape: The input's sizes without the batch.
        numbers: Constants that are plain Python: None, numbers and lists of integers.
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
        # Names in ONNX may hold dots, which names of buffers may not.
        self._names = {name: f"constant{i}" for i, name in enumerate(constants)}
        for name, tensor in constants.items():
            self.register_buffer(self._names[name], tensor)
        self._nodes = tuple(nodes)
        last = {name: i for i, node in enumerate(nodes) for name in node.inputs}
        for name in (*self._names, *self._numbers, output_name):
            last.pop(name, None)
        self._done = [[name for name, end in last.items() if end == i] for i in range(len(nodes))]

    @classmethod
    def load(cls, path: Path) -> OnnxModule:
        """Read an ONNX file with one input of which all sizes but the batch are fixed.

        Raises:
            ArtifactError: The file is missing or damaged.
            UnsupportedOperator: It holds operators that are not known; all are named.
        """
        if not path.is_file():
            raise ArtifactError(f"there is no ONNX file {path}; give the path of an existing one")
        try:
            return cls._read(path)
        except ArtifactError:
            raise
        except Exception as error:  # those of protobuf and onnx share no base but this
            raise ArtifactError(f"{path} is not a whole ONNX file: {first_line(error)}") from error

    @classmethod
    def _read(cls, path: Path) -> OnnxModule:
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(path).graph
        constants = {
            each.name: torch.from_numpy(np.array(numpy_helper.to_array(each)))
            for each in graph.initializer
        }
        if unknown := foreign(graph, [*OPERATORS, "Constant"]):
            raise UnsupportedOperator(
                f"{path} has operators that PyTorch is not taught to run: {in_words(unknown)}; "
                "measure it with another runtime",
                unknown,
            )
        nodes = []
        for node in graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Constant":
                constants[node.output[0]] = _constant(attributes, numpy_helper.to_array)
                continue
            nodes.append(
                Node(
                    node.op_type,
                    tuple(node.input),
                    tuple(node.output),
                    {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()},
                )
            )
        inputs = [each for each in graph.input if each.name not in constants]
        if len(inputs) != 1 or not graph.output:
            raise ArtifactError(f"{path} has {len(inputs)} inputs; expected one batch of images")
        sizes = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim][1:]
        if not sizes or not all(sizes):
            raise ArtifactError(f"{path}: all sizes of the input but the batch must be fixed")
        return cls(nodes, constants, inputs[0].name, graph.output[0].name, tuple(sizes))

    def forward(self, images: Tensor) -> Tensor:
        """The output (N, ...) of inputs (N, *input_shape)."""
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
        """The same for one batch size, as compilers can trace it.

        What depends on no pixel is computed now; what of it is a number or a list of integers, such
        as the sizes of a reshape, becomes plain Python.

        Args:
            batch: Images a run.
        """
        values: dict[str, Any] = {self._input: torch.zeros(batch, *self.input_shape)}
        fixed = {name: getattr(self, own) for name, own in self._names.items()} | self._numbers
        left = []
        with torch.no_grad():
            for node in self._nodes:
                every = values | fixed
                results = node.run([every[name] for name in node.inputs])
                if node.kind == "Shape" or all(name in fixed for name in node.inputs):
                    fixed |= results
                else:
                    values |= results
                    left.append(node)
        numbers = {name: _plain(value) for name, value in fixed.items() if _is_plain(value)}
        used = {name for node in left for name in node.inputs} | {self._output}
        tensors = {n: v for n, v in fixed.items() if n in used and n not in numbers}
        return OnnxModule(left, tensors, self._input, self._output, self.input_shape, numbers)


def _is_plain(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return True
    return value.dim() == 0 or (value.dim() == 1 and not value.is_floating_point())


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _integers(value: Tensor | Sequence[int]) -> list[int]:
    """Sizes, axes and places, which are a tensor in the file and plain where it is frozen."""
    return value.tolist() if isinstance(value, Tensor) else list(value)


def _constant(attributes: Attributes, to_array: Callable[[Any], Any]) -> Tensor:
    if "value" in attributes:
        return torch.from_numpy(np.array(to_array(attributes["value"])))
    (value,) = attributes.values()
    return torch.tensor(value)


def _pads(attributes: Attributes, x: Tensor) -> tuple[Tensor, list[int]]:
    """Padding as PyTorch takes it; what is not symmetric is done beforehand."""
    spatial = x.dim() - 2
    pads = list(attributes.get("pads", [0] * 2 * spatial))
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise ArtifactError("auto_pad is not known; export with explicit padding")
    if pads[:spatial] == pads[spatial:]:
        return x, pads[:spatial]
    ends = [pads[i + side * spatial] for i in reversed(range(spatial)) for side in (0, 1)]
    return F.pad(x, ends), [0] * spatial


def _conv(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x, pads = _pads(a, x)
    spatial = [1] * (x.dim() - 2)
    strides, dilations = a.get("strides", spatial), a.get("dilations", spatial)
    run = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[x.dim() - 2]
    result: Tensor = run(x, weight, bias, strides, pads, dilations, a.get("group", 1))
    return result


def _pool(run: Callable[..., Tensor], **options: Any) -> Operator:
    def pool(a: Attributes, x: Tensor) -> Tensor:
        x, pads = _pads(a, x)
        kernel = a["kernel_shape"]
        chosen = dict(options)
        if "count_include_pad" in chosen:
            chosen["count_include_pad"] = bool(a.get("count_include_pad", 0))
        ceil = bool(a.get("ceil_mode", 0))
        return run(x, kernel, a.get("strides", [1] * len(kernel)), pads, ceil_mode=ceil, **chosen)

    return pool


def _gemm(a: Attributes, x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    x = x.t() if a.get("transA") else x
    y = y.t() if a.get("transB") else y
    product = a.get("alpha", 1.0) * (x @ y) if a.get("alpha", 1.0) != 1.0 else x @ y
    return product if bias is None else product + a.get("beta", 1.0) * bias


def _norm(a: Attributes, x: Tensor, *weights: Tensor) -> Tensor:
    weight, bias, mean, variance = weights
    return F.batch_norm(x, mean, variance, weight, bias, eps=a.get("epsilon", 1e-5))


def _layer_norm(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axis = a.get("axis", -1) % x.dim()
    return F.layer_norm(x, x.shape[axis:], weight, bias, a.get("epsilon", 1e-5))


def _hard_sigmoid(a: Attributes, x: Tensor) -> Tensor:
    alpha, beta = a.get("alpha", 0.2), a.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    result: Tensor = (alpha * x + beta).clamp(0, 1)
    return result


def _reshape(a: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(_integers(shape))]
    return x.reshape(sizes)


def _reduction(run: Callable[..., Tensor]) -> Operator:
    def reduction(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
        given = _integers(axes) if axes is not None else a.get("axes", list(range(x.dim())))
        return run(x, given, keepdim=bool(a.get("keepdims", 1)))

    return reduction


def _clip(
    a: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None
) -> Tensor:
    least = a.get("min") if low is None else float(low)
    most = a.get("max") if high is None else float(high)
    return x.clamp(least, most)


def _slice(
    a: Attributes,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    begins, limits = _integers(starts), _integers(ends)
    places = _integers(axes) if axes is not None else range(len(begins))
    strides = _integers(steps) if steps is not None else [1] * len(begins)
    index = [slice(None)] * x.dim()
    for axis, start, end, step in zip(places, begins, limits, strides, strict=True):
        index[axis] = slice(start, min(end, x.shape[axis]), step)
    return x[tuple(index)]


def _split(a: Attributes, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = a.get("axis", 0)
    if sizes is not None:
        return torch.split(x, _integers(sizes), axis)
    return x.tensor_split(a["num_outputs"], axis)


def _squeeze(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = _integers(axes) if axes is not None else a.get("axes")
    return x.squeeze(given) if given is not None else x.squeeze()


def _unsqueeze(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    for axis in sorted(_integers(axes) if axes is not None else a["axes"]):
        x = x.unsqueeze(axis)
    return x


def _gather(a: Attributes, x: Tensor, index: Tensor | int | list[int]) -> Tensor:
    axis = a.get("axis", 0) % x.dim()
    index = torch.as_tensor(index) if isinstance(index, list) else index
    if isinstance(index, int) or index.dim() == 0:
        return x.select(axis, int(index))
    shape = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
    return x.index_select(axis, index.flatten()).reshape(shape)


OPERATORS: dict[str, Operator] = {
    "Add": lambda a, x, y: x + y,
    "AveragePool": _pool(F.avg_pool2d, count_include_pad=False),
    "BatchNormalization": _norm,
    "Cast": lambda a, x: x.float() if a["to"] == 1 else x.long(),
    "Clip": _clip,
    "Concat": lambda a, *x: torch.cat(x, a["axis"]),
    "Conv": _conv,
    "Div": lambda a, x, y: x / y,
    "Dropout": lambda a, x, *rest: x,
    "Elu": lambda a, x: F.elu(x, a.get("alpha", 1.0)),
    "Erf": lambda a, x: torch.erf(x),
    "Expand": lambda a, x, shape: x * torch.ones(_integers(shape), dtype=x.dtype),
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Gather": _gather,
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda a, x: x.mean(list(range(2, x.dim())), keepdim=True),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda a, x: F.hardswish(x),
    "Identity": lambda a, x: x,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "MatMul": lambda a, x, y: x @ y,
    "MaxPool": _pool(F.max_pool2d),
    "Mul": lambda a, x, y: x * y,
    "Pow": lambda a, x, y: x**y,
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "Relu": lambda a, x: F.relu(x),
    "Reshape": _reshape,
    "Shape": lambda a, x: torch.tensor(x.shape),
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda a, x: x.softmax(a.get("axis", -1)),
    "Split": _split,
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Squeeze": _squeeze,
    "Sub": lambda a, x, y: x - y,
    "Tanh": lambda a, x: torch.tanh(x),
    "Transpose": lambda a, x: x.permute(a.get("perm", tuple(reversed(range(x.dim()))))),
    "Unsqueeze": _unsqueeze,
}
"""What each operator of ONNX does, given its attributes and its inputs."""
