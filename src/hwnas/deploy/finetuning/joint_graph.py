"""Graph of a network's loss and of all its gradients, traced once without computing anything.

The backward graph of a scheme is what remains of this graph when only the gradients of the scheme
are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from hwnas.deploy.error_line import first_line
from hwnas.deploy.finetuning.layers import TrainableLayer, trainable_layers
from hwnas.deploy.finetuning.separable import separated
from hwnas.errors import ArtifactError

__all__ = ["GraphOperator", "JointGraph", "ValueOf", "replaced", "trace_network"]

_ALIASES = ("aten.detach.default", "aten.alias.default")


@dataclass(frozen=True)
class ValueOf:
    """Place of a value in the arguments of an operator.

    Attributes:
        number: Number of the operator, or of the input, that the value comes from.
    """

    number: int


@dataclass(frozen=True)
class GraphOperator:
    """Operator, or input, of a graph; its value has the operator's number.

    Attributes:
        name: Name of the operator, such as ``"aten.convolution.default"``; of an input.
        function: Function that computes the value; None for an input.
        arguments: Positional and named arguments, with `ValueOf` in place of values.
        reads: Numbers of the values that it reads.
        storages: Pieces of memory that its value lies in; a view lies in that of its base.
        is_forward: Whether it comes before the loss, or is the loss.
        kind: ``"mask"`` for booleans, ``"indices"`` for places of a pooling, ``"activation"`` for
            numbers that are computed before the network's output and that may be rounded, ``""``
            for other values.
        shape: Shape of the value; empty if it is several tensors.
    """

    name: str
    function: Callable[..., Any] | None
    arguments: tuple[Any, Any]
    reads: tuple[int, ...]
    storages: tuple[int, ...]
    is_forward: bool
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class JointGraph:
    """Operators of a network's loss and of its gradients for a batch of one size.

    Attributes:
        layers: Layers whose update can be chosen and that the loss depends on.
        operators: Inputs and operators in an order in which they can run, by number.
        storage_bytes: Size of each piece of memory in bytes.
        parameters: Numbers of the inputs that are parameters or buffers, by their names.
        images: Number of the input with the images.
        targets: Number of the input with the classes.
        loss: Number of the loss.
        gradients: Number of each gradient, by the name of the parameter and the number of input
            channels; 0 for the whole parameter.
        batch: Number of images.
        input_shape: Channels, height and width of an image.
    """

    layers: tuple[TrainableLayer, ...]
    operators: Mapping[int, GraphOperator]
    storage_bytes: Mapping[int, int]
    parameters: Mapping[str, int]
    images: int
    targets: int
    loss: int
    gradients: Mapping[tuple[str, int], int]
    batch: int
    input_shape: tuple[int, ...]

    @cached_property
    def fixed_storages(self) -> frozenset[int]:
        """Pieces of memory of the parameters, buffers and constants."""
        fixed = (*self.parameters.values(), *self.constants)
        return frozenset(s for number in fixed for s in self.operators[number].storages)

    @property
    def given(self) -> tuple[int, ...]:
        """Numbers of all inputs: images, targets, parameters and buffers."""
        return (self.images, self.targets, *self.parameters.values())

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """Numbers of the operators that return a constant of the graph."""
        return tuple(n for n, each in self.operators.items() if each.name == "constant")


def trace_network(network: nn.Module, input_shape: Sequence[int], batch: int) -> JointGraph:
    """Trace the cross-entropy of a classifier, and its gradients for all parameters.

    Args:
        network: Network in evaluation mode, from (N, *input_shape) to class scores (N, K).
        input_shape: Channels, height and width.
        batch: Number of images, at least 1.

    Raises:
        ArtifactError: The network cannot be differentiated.
    """
    layers = trainable_layers(network)
    names = [*dict(network.named_parameters()), *dict(network.named_buffers())]
    tensors = [*network.parameters(), *network.buffers()]
    wanted = [(layer, width) for layer in layers for width in (0, *layer.widths[:-1])]
    biases = [layer for layer in layers if layer.bias is not None]

    def joint(images: Tensor, targets: Tensor, *given: Tensor) -> tuple[Tensor | None, ...]:
        leaves = dict(zip(names, given, strict=True))
        leaves |= {name: _leaf(leaves[name]) for name, _ in network.named_parameters()}
        parts = {
            layer.name: [_leaf(layer.part(leaves[layer.weight], w)) for w in layer.widths[:-1]]
            for layer in layers
        }
        with separated(network, layers, parts):
            outputs = functional_call(network, leaves, (images,))
        loss = F.cross_entropy(outputs, targets)
        sought = [t for layer in layers for t in (leaves[layer.weight], *parts[layer.name])]
        sought += [leaves[str(layer.bias)] for layer in biases]
        return (outputs, loss, *torch.autograd.grad(loss, sought, allow_unused=True))

    images, targets = torch.zeros(batch, *input_shape), torch.zeros(batch, dtype=torch.int64)
    try:
        traced = make_fx(joint, tracing_mode="fake")(images, targets, *tensors)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise ArtifactError(
            f"the network cannot be trained: {first_line(error)}; give a classifier whose operators"
            " have gradients"
        ) from error
    keys = [(layer.weight, width) for layer, width in wanted]
    keys += [(str(layer.bias), 0) for layer in biases]
    return _Reader(traced).read(layers, names, keys, (batch, *input_shape))


def replaced(value: Any, change: Callable[[int], Any]) -> Any:
    """Return arguments with each `ValueOf` changed, by the value's number."""
    if isinstance(value, ValueOf):
        return change(value.number)
    if isinstance(value, tuple | list):
        return type(value)(replaced(each, change) for each in value)
    if isinstance(value, dict):
        return {key: replaced(each, change) for key, each in value.items()}
    return value


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


class _Reader:
    """Converter of a traced module to a graph."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._numbers: dict[fx.Node, int] = {}
        self._storages: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._operators: dict[int, GraphOperator] = {}

    def read(
        self,
        layers: Sequence[TrainableLayer],
        names: Sequence[str],
        keys: Sequence[tuple[str, int]],
        shape: tuple[int, ...],
    ) -> JointGraph:
        [output] = [node for node in self._traced.graph.nodes if node.op == "output"]
        scores, loss, *gradients = output.args[0]
        nodes = [node for node in self._traced.graph.nodes if node.op != "output"]
        last, last_of_network = nodes.index(loss), nodes.index(scores)
        for place, node in enumerate(nodes):
            self._add(node, place <= last, place <= last_of_network)
        inputs = [self._numbers[node] for node in nodes if node.op == "placeholder"]
        found = {
            key: self._numbers[node]
            for key, node in zip(keys, gradients, strict=True)
            if node is not None
        }
        return JointGraph(
            tuple(layer for layer in layers if (layer.weight, 0) in found),
            self._operators,
            self._bytes,
            dict(zip(names, inputs[2:], strict=True)),
            inputs[0],
            inputs[1],
            self._numbers[loss],
            found,
            shape[0],
            shape[1:],
        )

    def _add(self, node: fx.Node, is_forward: bool, before_scores: bool) -> None:
        name, function = str(node.target), node.target if callable(node.target) else None
        if name in _ALIASES:  # other names of the same value
            [base] = node.all_input_nodes
            self._numbers[node] = self._numbers[base]
            return
        if node.op == "get_attr":
            constant = getattr(self._traced, name)
            name, function = "constant", lambda: constant
        self._numbers[node] = number = len(self._numbers)
        arguments = self._arguments(node.args), self._arguments(dict(node.kwargs))
        value = node.meta.get("val", getattr(self._traced, str(node.target), None))
        tensors = tuple(_tensors(value))
        self._operators[number] = GraphOperator(
            getattr(function, "__name__", name) if "built-in" in name else name,
            function,
            arguments,
            tuple(dict.fromkeys(self._numbers[each] for each in node.all_input_nodes)),
            tuple(dict.fromkeys(self._storage(each) for each in tensors)),
            is_forward,
            _kind(node, tensors, before_scores),
            tuple(tensors[0].shape) if len(tensors) == 1 else (),
        )

    def _arguments(self, value: Any) -> Any:
        """Return arguments with `ValueOf` in place of nodes."""
        if isinstance(value, fx.Node):
            return ValueOf(self._numbers[value])
        if isinstance(value, tuple | list):
            found = [self._arguments(each) for each in value]
            return tuple(found) if isinstance(value, tuple) else found
        if isinstance(value, dict):
            return {key: self._arguments(each) for key, each in value.items()}
        return value

    def _storage(self, tensor: Tensor) -> int:
        """Return the number of the memory that a tensor without values would lie in."""
        memory = tensor.untyped_storage()
        number = self._storages.setdefault(memory._cdata, len(self._storages))
        self._bytes[number] = memory.nbytes()
        return number


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _kind(node: fx.Node, tensors: Sequence[Tensor], before_scores: bool) -> str:
    if len(tensors) != 1 or node.op != "call_function":
        return ""
    if tensors[0].dtype == torch.bool:
        return "mask"
    source = node.args[0]
    if tensors[0].dtype == torch.int64 and "max_pool" in str(getattr(source, "target", "")):
        return "indices"
    is_further = "getitem" in str(node.target) and node.args[1] != 0  # such as a deviation
    rounded = tensors[0].dtype == torch.float32 and before_scores and not is_further
    return "activation" if rounded else ""
