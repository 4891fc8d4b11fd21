"""First module at which an ONNX file diverges from the network that it was exported from.

The outermost modules are compared first, then the modules within the first one that differs, and so
on. Each step reads only the tensors at the borders of these modules, so that the runtime fuses all
other operators as it does in the whole file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.deploy.export.comparison import TOLERANCE, relative_error
from hwnas.deploy.onnx.node_names import block_of

__all__ = ["Divergence", "first_divergence"]


@dataclass(frozen=True)
class Divergence:
    """Innermost module in which a file begins to differ from the network.

    Attributes:
        block: Path of the module; empty for the network itself.
        operator: Type of the operator in the file that computes the first tensor that differs.
        error: Difference of that tensor, as a share of its largest value.
        beside: True if the modules within it agree, so that the difference arises in its own
            operations between the calls of these modules.
    """

    block: str
    operator: str
    error: float
    beside: bool = False

    def __str__(self) -> str:
        place = self.block or "the network itself"
        if self.beside:
            place = f"the operations of {place} outside its modules"
        return f"{place} ({self.operator}), by {self.error:.2g} of the tensor's largest value"


@dataclass(frozen=True)
class _Border:
    """Tensors of the file that enter a module, and the only tensor that leaves it."""

    inputs: tuple[str, ...]
    output: str


@dataclass
class _Calls:
    """Inputs and outputs of a module in PyTorch; each call appends one tensor, or None, to both."""

    inputs: list[NDArray[Any] | None] = field(default_factory=list)
    outputs: list[NDArray[Any] | None] = field(default_factory=list)


def first_divergence(network: nn.Module, model: Any, images: Tensor, error: float) -> Divergence:
    """Find the first module whose output differs, from the outermost modules to the innermost.

    Args:
        network: Network in evaluation mode, with the modules that it was exported with.
        model: ONNX model, whose node names contain the blocks.
        images: Inputs on which the two differ.
        error: Difference of their outputs, as a share of the largest output.
    """
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    output = model.graph.output[0].name
    found = Divergence("", makers.get(output, "no operator"), error)
    while True:
        modules = dict(_modules_within(network, model.graph, found.block))
        step = _first_of(modules, network, model, images)
        if step is None:
            return replace(found, beside=bool(modules) or not found.block)
        tensor, block, error = step
        if not block:  # its inputs differ already
            return Divergence(found.block, makers.get(tensor, "no operator"), error, beside=True)
        found = Divergence(block, makers.get(tensor, "no operator"), error)


def _first_of(
    borders: Mapping[str, _Border], network: nn.Module, model: Any, images: Tensor
) -> tuple[str, str, float] | None:
    """Return the first tensor that differs, the module that computes it, and the error.

    The module is empty if the tensor is an input of a module. The result is None if all tensors
    agree.
    """
    if not borders:
        return None
    values = _values(model, images, borders.values())
    for block, calls in _called(network, images, list(borders)).items():
        border = borders[block]
        error = _difference({border.output: values[border.output]}, calls.outputs)[1]
        if error <= TOLERANCE:
            continue
        entering = {name: values[name] for name in border.inputs}
        tensor, before = _difference(entering, calls.inputs)
        if before <= TOLERANCE:
            return border.output, block, error
        return tensor, "", before
    return None


def _modules_within(network: nn.Module, graph: Any, scope: str) -> Iterator[tuple[str, _Border]]:
    """Yield the outermost modules below ``scope`` with exactly one output tensor in the file."""
    for name, child in network.get_submodule(scope).named_children():
        path = f"{scope}.{name}" if scope else name
        border = _border(graph, path)
        if border is not None and type(child).forward is not nn.Module.forward:
            yield path, border
        else:
            yield from _modules_within(network, graph, path)


def _border(graph: Any, path: str) -> _Border | None:
    given, taken, outside = set[str](), dict[str, None](), {each.name for each in graph.output}
    for node in graph.node:
        block = block_of(node.name)
        if block == path or block.startswith(f"{path}."):
            given.update(node.output)
            taken.update(dict.fromkeys(node.input))
        else:
            outside.update(node.input)
    leaving = given & outside
    weights = {each.name for each in graph.initializer}
    inputs = tuple(name for name in taken if name and name not in given | weights)
    return _Border(inputs, leaving.pop()) if len(leaving) == 1 else None


def _values(model: Any, images: Tensor, borders: Iterable[_Border]) -> dict[str, NDArray[Any]]:
    """Return the values of the file's tensors at these borders, by name."""
    import onnx
    import onnxruntime

    wanted = dict.fromkeys(name for b in borders for name in (*b.inputs, b.output))
    widened = onnx.ModelProto()
    widened.CopyFrom(model)
    own = {each.name for each in (*model.graph.output, *model.graph.input)}
    widened.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in wanted if name not in own
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised as well
    session = onnxruntime.InferenceSession(
        widened.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    given = {model.graph.input[0].name: images.numpy()}
    names = [each.name for each in session.get_outputs()]
    return {**given, **dict(zip(names, session.run(names, given), strict=True))}


@torch.no_grad()
def _called(network: nn.Module, images: Tensor, paths: Sequence[str]) -> dict[str, _Calls]:
    """Return the inputs and outputs of modules, in the order in which their first calls ended."""
    calls: dict[str, _Calls] = {}

    def note(path: str, arguments: tuple[Any, ...], output: Any) -> None:
        tensors = [a.numpy().copy() for a in arguments if isinstance(a, Tensor)]
        call = calls.setdefault(path, _Calls())
        call.inputs.append(tensors[0] if len(tensors) == 1 else None)
        call.outputs.append(output.numpy().copy() if isinstance(output, Tensor) else None)

    def hook(path: str) -> Any:
        return lambda module, arguments, output: note(path, arguments, output)

    handles = [network.get_submodule(path).register_forward_hook(hook(path)) for path in paths]
    try:
        network(images)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _difference(
    found: Mapping[str, NDArray[Any]], calls: Sequence[NDArray[Any] | None]
) -> tuple[str, float]:
    """Return the one tensor of the file that fits a module's only call, and its error.

    The result is an empty name and 0 if there is no such tensor.
    """
    if len(calls) == 1 and calls[0] is not None:
        expected = calls[0]
        fitting = [name for name, array in found.items() if array.shape == expected.shape]
        if len(fitting) == 1 and np.issubdtype(found[fitting[0]].dtype, np.floating):
            return fitting[0], relative_error(found[fitting[0]], expected)
    return "", 0.0
