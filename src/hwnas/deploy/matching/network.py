"""Matched network that runs kernels where they are faster, and PyTorch for the rest."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.matching.choices import Decide, decided
from hwnas.deploy.matching.graph import VIEWS, Graph, OperatorCall, Step, is_node
from hwnas.deploy.matching.patterns.activations import activation_of
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.launch import cannot_run
from hwnas.kernels.operator import Sizes
from hwnas.kernels.tuning.choice import KernelChoice

__all__ = ["ChosenCall", "MatchedNetwork", "chosen_calls", "left_in_torch"]

_WITH_FLOATS = ("QuantizeLinear", "Rounded")
_IN_FLOATS = "a node beside it has no operator in int8"
_NOT_FASTER = "its kernel was not measured to be faster"


@dataclass(frozen=True)
class ChosenCall:
    """Call of an operator, with the choice of how it is computed.

    Attributes:
        call: Call in the network.
        sizes: Sizes of its inputs.
        choice: Configuration of its kernels, or the choice of PyTorch.
        alternative: Reason why another operator that can compute the same was not chosen; empty if
            there is none.
    """

    call: OperatorCall
    sizes: Sizes
    choice: KernelChoice
    alternative: str = ""


class MatchedNetwork:
    """Executable graph for one batch size, on one device, in one format.

    Images are held as NHWC, which the operators read. For PyTorch, feature maps are (N, C, H, W) in
    ``channels_last``. An operator gets them permuted, which moves nothing in memory.

    Args:
        graph: Graph from `hwnas.deploy.matching.matched`.
        dtype: Type that the network computes in; inputs and outputs are float32.
        device: Device that it runs on. If kernels cannot run there, the references of the operators
            do, and a warning says so.
        decide: Function that chooses how each operator is computed.

    Attributes:
        input_shape: Shape of the input, without the batch.
        chosen: All calls, with their choices.
        left: Number of steps that PyTorch computes, by kind and reason: nodes that belong to no
            call, and operators that are left to PyTorch.
        note: Reason why no kernel runs at all, or empty.
    """

    def __init__(
        self,
        graph: Graph,
        dtype: torch.dtype,
        device: torch.device,
        decide: Decide = decided,
    ) -> None:
        self.input_shape = graph.shapes[graph.input][1:]
        self.note = cannot_run(device) or ""
        if self.note:
            self.note += "; PyTorch computes all operators"
            warnings.warn(self.note, RuntimeWarning, stacklevel=2)
        self.chosen = chosen_calls(graph, dtype, decide)
        slower = [each.call.operator.name for each in self.chosen if not each.choice.kernel]
        self.left = left_in_torch(graph) + Counter((name, _NOT_FASTER) for name in slower)
        kernels = {
            each.call.outputs[0]: _Kernel.of(each, dtype, device, not self.note)
            for each in self.chosen
        }
        self._steps: list[_Kernel | _Torch] = [
            _Torch.of(step, graph.constants, dtype, device)
            if isinstance(step, Node)
            else kernels[step.outputs[0]]
            for step in graph.steps
        ]
        self._input, self._output = graph.input, graph.output
        rounded = all(map(_reads_float32, graph.readers(graph.input)))
        self._given = torch.float32 if rounded else dtype
        last = {name: i for i, step in enumerate(graph.steps) for name in step.inputs}
        last.pop(graph.output, None)
        self._done = [[n for n, end in last.items() if end == i] for i in range(len(graph.steps))]

    @property
    def counts(self) -> Counter[str]:
        """Number of calls of each operator, without those that are left to PyTorch."""
        return Counter(each.call.operator.name for each in self.chosen if each.choice.kernel)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the output (N, ...), float32, for images (N, ...) on the network's device."""
        layout = torch.channels_last if images.dim() == 4 else torch.contiguous_format
        values = {self._input: images.to(self._given, memory_format=layout)}
        for step, done in zip(self._steps, self._done, strict=True):
            values.update(step.run(values))
            for name in done:
                values.pop(name, None)
        return values[self._output].float()


def chosen_calls(graph: Graph, dtype: torch.dtype, decide: Decide = decided) -> list[ChosenCall]:
    """Return all calls of a graph, each with the choice of how it is computed.

    Args:
        graph: Graph from `hwnas.deploy.matching.matched`.
        dtype: Type that the network computes in.
        decide: Function that chooses how each operator is computed.
    """
    calls = [step for step in graph.steps if isinstance(step, OperatorCall)]
    sizes = [graph.sizes(call, dtype) for call in calls]
    return [
        ChosenCall(
            call,
            known,
            decide(call.operator, known, call.type_in(dtype)),
            graph.alternatives.get(call.outputs[0], ""),
        )
        for call, known in zip(calls, sizes, strict=True)
    ]


def left_in_torch(graph: Graph) -> Counter[tuple[str, str]]:
    """Count the nodes that belong to no call, by kind and reason.

    Windows that PyTorch gathers for an operator are counted too, as kind ``"Windows"``.
    """
    nodes = [step for step in graph.steps if isinstance(step, Node) and step.kind not in VIEWS]
    gathered = [step for step in graph.steps if isinstance(step, OperatorCall) and step.windows]
    return Counter((node.kind, _reason(graph, node)) for node in nodes) + Counter(
        ("Windows", f"gathered for {call.operator.name}, which reads pixels") for call in gathered
    )


def _reads_float32(step: Step) -> bool:
    """Return whether a step needs the network's input in float32, because it quantises it."""
    single = isinstance(step, OperatorCall) and step.dtype == torch.float32
    return single or is_node(step, "QuantizeLinear")


def _reason(graph: Graph, node: Node) -> str:
    known = graph.reasons.get(node.outputs[0])
    if known is not None:
        return known
    if node.kind == "Lookup" or activation_of(graph, node) is not None:
        return "no layer before it can be fused with it"
    if node.kind == "DequantizeLinear":
        return "the output is in floating point" if node.outputs[0] == graph.output else _IN_FLOATS
    if node.kind in _WITH_FLOATS:
        return _IN_FLOATS
    if node.kind in ("Add", "Mul"):
        return "no layer beside it can be fused with it"
    return "there is no operator for it"


@dataclass(frozen=True)
class _Kernel:
    """Call with its weights on the device."""

    chosen: ChosenCall
    weights: Mapping[str, Tensor]
    runs: bool

    @classmethod
    def of(
        cls, chosen: ChosenCall, dtype: torch.dtype, device: torch.device, can_run: bool
    ) -> _Kernel:
        """Return a call whose weights are moved to the device and rounded once."""
        call, own = chosen.call, chosen.call.type_in(dtype)
        weights = {
            name: weight.to(device, call.weight_type(weight, own))
            for name, weight in call.weights.items()
        }
        return cls(chosen, weights, can_run and chosen.choice.kernel)

    def run(self, values: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the call's outputs by name."""
        call, operator = self.chosen.call, self.chosen.call.operator
        inputs = operator.bound(**call.arguments(values), **self.weights)
        if self.runs:
            return call.results(operator.run(inputs, self.chosen.choice.config))
        return call.results(operator.reference(**inputs))


@dataclass(frozen=True)
class _Torch:
    """Node with its constants on the device."""

    node: Node
    constants: Mapping[str, Any]
    dtype: torch.dtype

    @classmethod
    def of(
        cls, node: Node, constants: Mapping[str, Any], dtype: torch.dtype, device: torch.device
    ) -> _Torch:
        """Return a node whose weights are moved, rounded and laid out once."""
        own = {
            name: _moved(constants[name], dtype, device)
            for name in node.inputs
            if name in constants
        }
        if node.kind == "Gather" and isinstance(own.get(node.inputs[1]), list):
            own[node.inputs[1]] = torch.tensor(own[node.inputs[1]], device=device)
        return cls(node, own, dtype)

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the node's outputs by name.

        Floating-point outputs get the network's dtype, even after a cast.
        """
        own = self.constants
        found = self.node.run([own[n] if n in own else values[n] for n in self.node.inputs])
        return {
            name: value.to(self.dtype) if _is_floating(value) else value
            for name, value in found.items()
        }


def _moved(value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not value.is_floating_point():
        return value.to(device)
    layout = torch.channels_last if value.dim() == 4 else torch.contiguous_format
    return value.to(device, dtype, memory_format=layout)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
