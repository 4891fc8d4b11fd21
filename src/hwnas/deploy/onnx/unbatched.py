"""ONNX graphs whose constants do not depend on the number of images, for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.module import Node, OnnxModule
from hwnas.deploy.onnx.simplified import transposed_at_once, with_biases
from hwnas.errors import ArtifactError, HwnasError

__all__ = ["UnbatchedGraph", "for_one_number", "unbatched"]

_BATCHES = 2, 3  # what differs between these numbers of images depends on the number of images

Shape = tuple[int, ...]


@dataclass(frozen=True)
class UnbatchedGraph:
    """Nodes and constants that work for any number of images.

    Attributes:
        nodes: Nodes in the order of execution.
        tensors: Constants that are tensors, by name.
        numbers: Constants that are plain Python values, by name.
        repeated: Names of the tensors of one row that are repeated for each image.
        heads: Number of parts that a reshape splits channels into, by name of its output.
        ranks: Number of dimensions of each value, by name.
        input_name: Name of the only input.
        output_name: Name of the only output.
    """

    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Any]
    repeated: frozenset[str]
    heads: Mapping[str, int]
    ranks: Mapping[str, int]
    input_name: str
    output_name: str


def unbatched(module: OnnxModule, path: Path) -> UnbatchedGraph:
    """Return the graph of a module for any number of images, with other sizes computed beforehand.

    The nodes are simplified as `simplified` does.

    Args:
        module: Module of an ONNX file.
        path: Path of the file, for messages.

    Raises:
        ArtifactError: The file works for one number of images only.
    """
    try:
        module = _relaxed(module)
        frozen = [module.frozen(batch) for batch in _BATCHES]
        shapes = [_shapes(each, batch) for each, batch in zip(frozen, _BATCHES, strict=True)]
    except HwnasError:
        raise
    except Exception as error:  # operators of PyTorch raise many types for wrong sizes
        raise for_one_number(path, first_line(error)) from error
    constants, others = (each.constants for each in frozen)
    numbers = {name: value for name, value in constants.items() if not isinstance(value, Tensor)}
    nodes: list[Node] = []
    heads: dict[str, int] = {}
    for node in transposed_at_once(frozen[0].nodes, shapes[0], module.output_name):
        sizes, after = f"{node.outputs[0]}:sizes", [each[node.outputs[0]] for each in shapes]
        if node.kind == "Reshape":
            before = shapes[0][node.inputs[0]]
            numbers[sizes] = _reshaped(before, *after)
            if numbers[sizes].count(-1) > 1:
                raise for_one_number(path, repr(node.outputs[0]))
            if len(after[0]) > len(before):
                parts = {shape[numbers[sizes].index(-1)] for shape in after}
                heads |= {node.outputs[0]: parts.pop()} if len(parts) == 1 else {}
            node = replace(node, inputs=(node.inputs[0], sizes))
        elif node.kind == "Expand":
            numbers[sizes] = _expanded(constants[node.inputs[1]], others[node.inputs[1]])
            node = replace(node, inputs=(node.inputs[0], sizes))
        elif any(numbers[name] != others[name] for name in node.inputs if name in numbers):
            raise for_one_number(path, repr(node.outputs[0]))
        nodes.append(node)
    tensors = {name: value for name, value in constants.items() if isinstance(value, Tensor)}
    repeated = {name for name, value in tensors.items() if value.shape != others[name].shape}
    for name in repeated:
        row = tensors[name][:1]
        if not torch.equal(row.expand(_BATCHES[1], *row.shape[1:]), others[name]):
            raise for_one_number(path, repr(name))
        tensors[name] = row
    return UnbatchedGraph(
        with_biases(nodes, tensors, module.output_name),
        tensors,
        numbers,
        frozenset(repeated),
        heads,
        {name: len(shape) for name, shape in shapes[0].items()},
        module.input_name,
        module.output_name,
    )


def _relaxed(module: OnnxModule) -> OnnxModule:
    """Return a module that takes any number of images where its file states that it is 1.

    Files that were exported for one image state it in reshapes, and concatenate constants with it.
    """
    one = module.frozen(1)
    shapes, constants = _shapes(one, 1), module.constants
    nodes: list[Node] = []
    for node in module.nodes:
        if node.kind == "Reshape" and shapes.get(node.inputs[0], ())[:1] == (1,):
            sizes = constants.get(node.inputs[1])
            if isinstance(sizes, Tensor) and sizes[:1].tolist() == [1]:
                name = f"{node.outputs[0]}:sizes"
                constants[name] = torch.cat([sizes.new_zeros(1), sizes[1:]])
                node = replace(node, inputs=(node.inputs[0], name))
        if node.kind == "Concat" and node.attributes["axis"] != 0:
            rows = [name for name in node.inputs if _is_row(one.constants.get(name))]
            for name in rows if len(rows) < len(node.inputs) else ():
                copies = f"{node.outputs[0]}:{name}"
                nodes += _repeated(name, copies, module.input_name)
                constants[f"{copies}:rest"] = torch.tensor(one.constants[name].shape[1:])
                renamed = [copies if each == name else each for each in node.inputs]
                node = replace(node, inputs=tuple(renamed))
        nodes.append(node)
    tensors = {name: value for name, value in constants.items() if isinstance(value, Tensor)}
    return OnnxModule(nodes, tensors, module.input_name, module.output_name, module.input_shape)


def _is_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1 and len(value) == 1


def _repeated(name: str, copies: str, images: str) -> list[Node]:
    """Return nodes that repeat a constant for each image."""
    number, sizes = f"{copies}:images", f"{copies}:sizes"
    return [
        Node("Shape", (images,), (number,), {"end": 1}),
        Node("Concat", (number, f"{copies}:rest"), (sizes,), {"axis": 0}),
        Node("Expand", (name, sizes), (copies,), {}),
    ]


def for_one_number(path: Path, why: str) -> ArtifactError:
    """Return the error of a file that works for one number of images only."""
    return ArtifactError(
        f"{path} works for one number of images only ({why}); export it with a dynamic batch"
    )


def _shapes(module: OnnxModule, batch: int) -> dict[str, Shape]:
    """Return the shape of each value of a module."""
    values: dict[str, Any] = {module.input_name: torch.zeros(batch, *module.input_shape)}
    values |= module.constants
    with torch.no_grad():
        for node in module.nodes:
            values |= node.run([values[name] for name in node.inputs])
    return {name: tuple(each.shape) for name, each in values.items() if isinstance(each, Tensor)}


def _reshaped(before: Shape, after: Shape, other: Shape) -> list[int]:
    """Return the sizes of a reshape such that few are fixed: 0 keeps a size, -1 is what remains.

    Args:
        before: Shape of the input.
        after: Shape of the output.
        other: Shape of the output for another number of images.
    """
    kept = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))))
    pairs = zip(after[kept:], other[kept:], strict=True)
    rest = [one if one == two else -1 for one, two in pairs]
    if -1 not in rest and rest:
        rest[_changing(before[kept:], rest)] = -1
    return [0] * kept + rest


def _changing(before: Sequence[int], after: Sequence[int]) -> int:
    """Return the place of the size that changes with the number of channels.

    Channels are either split into heads, the last but one size of the output, or are the first size
    of a map.

    Args:
        before: Sizes that are reshaped.
        after: Their new sizes.
    """
    place = max(len(after) - 2, 0) if len(before) == 1 else 0
    return place if after[place] > 1 else len(after) - 1


def _expanded(sizes: Sequence[int], others: Sequence[int]) -> list[int]:
    """Return the sizes of an expansion, in which 1 keeps a size."""
    return [one if one == other else 1 for one, other in zip(sizes, others, strict=True)]
