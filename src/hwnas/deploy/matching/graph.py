"""Network as a sequence of steps that rules rewrite: ONNX nodes and operator calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeGuard

import torch
from torch import Tensor

from hwnas.deploy.matching.windows import Windows
from hwnas.deploy.onnx.module import Node, OnnxModule
from hwnas.kernels.operator import Inputs, Operator, Sizes

__all__ = ["VIEWS", "Graph", "OperatorCall", "Rewrite", "Rule", "Step", "is_call", "is_node"]

Shape = tuple[int, ...]
VIEWS = ("Cast", "Dropout", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze",
         "Transpose", "Unsqueeze")  # fmt: skip
"""Kinds of nodes that give values another shape, usually without moving them in memory."""
_ALIKE = ("x", "residual")  # arguments with the same dtype


@dataclass(frozen=True)
class OperatorCall:
    """Call of an operator that replaces some nodes.

    Attributes:
        operator: Operator of `hwnas.kernels`.
        reads: Names of the values that the call reads, by the operator's argument.
        weights: Constants in the operator's layout, by argument, in float32.
        options: All other arguments that differ from their defaults.
        outputs: Names of the values that the call computes.
        nodes: Kinds of the nodes that the call replaces.
        maps: Whether x, residual and y are feature maps. These are NCHW in the graph and NHWC for
            the operator, in the same memory. Heads of y are then joined along the channels.
        dtype: Type of x; None for that of the network.
        windows: Windows that x is gathered from; None if the operator reads the map itself.
    """

    operator: Operator
    reads: Mapping[str, str]
    weights: Mapping[str, Tensor]
    options: Mapping[str, Any]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    maps: bool = False
    dtype: torch.dtype | None = None
    windows: Windows | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all values that the call reads."""
        return tuple(self.reads.values())

    @property
    def activation(self) -> str:
        """Name of the activation that is folded into the call, ``"none"`` if there is none."""
        return str(self.options.get("activation", "none"))

    def type_in(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that the call computes in, where the network computes in ``dtype``."""
        return self.dtype or dtype

    def weight_type(self, weight: Tensor, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of one of the call's weights, where the call computes in ``dtype``."""
        return self.floats_in(dtype) if weight.is_floating_point() else weight.dtype

    @staticmethod
    def floats_in(dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of floating-point arguments beside an x of the given dtype."""
        return dtype if dtype.is_floating_point else torch.float32

    def and_then(self, nodes: Sequence[str], output: str, **changes: Any) -> OperatorCall:
        """Return the call with the nodes after it folded in; their output becomes its first one."""
        outputs = (output, *self.outputs[1:])
        return replace(self, outputs=outputs, nodes=(*self.nodes, *nodes), **changes)

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the operator's arguments except for weights, taken from values of the graph."""
        found = dict(self.options)
        for name, value in self.reads.items():
            found[name] = values[value]
            if name == "gate":
                found[name] = values[value].flatten(1)
            elif self.maps and values[value].dim() == 4:
                found[name] = values[value].permute(0, 2, 3, 1)
        if self.windows is not None:
            found["x"] = self.windows.of(found["x"])
        return found

    def results(self, computed: Any) -> dict[str, Tensor]:
        """Return the values of the graph, by name, from what the operator returned."""
        tensors = computed if isinstance(computed, tuple) else (computed,)
        found = dict(zip(self.outputs, tensors, strict=False))
        if self.maps and tensors[0].dim() > 2:
            found[self.outputs[0]] = tensors[0].flatten(3).permute(0, 3, 1, 2)
        return found


Step = Node | OperatorCall


def is_node(step: Step | None, *kinds: str) -> TypeGuard[Node]:
    """Return whether a step is a node, and of one of these kinds if any are given."""
    return isinstance(step, Node) and (not kinds or step.kind in kinds)


def is_call(step: Step | None, *operators: str) -> TypeGuard[OperatorCall]:
    """Return whether a step is a call of one of these operators."""
    return isinstance(step, OperatorCall) and step.operator.name in operators


@dataclass(frozen=True)
class Rewrite:
    """Replacement of steps by others.

    Attributes:
        old: Steps that are removed.
        new: Steps that compute the same values.
        shapes: Shapes of values that are new, by name.
        constants: Constants that the new steps need, by name.
        alternative: Whether the old steps do the same with other operators, and may be faster.
    """

    old: Sequence[Step]
    new: Sequence[Step]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    alternative: bool = False


@dataclass(frozen=True)
class Graph:
    """Steps of a network in the order of execution, with their constants and shapes.

    Attributes:
        steps: Nodes and calls, each of which reads only what earlier ones compute.
        constants: Weights, numbers and lists of integers by name; None for omitted inputs.
        shapes: Shapes of all tensors, by name.
        input: Name of the only input.
        output: Name of the only output.
        reasons: Known reasons why nodes are not part of a call, by name of their first output.
        alternatives: Reasons why calls of other operators do not replace calls, by name of the
            first output.
    """

    steps: tuple[Step, ...]
    constants: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    input: str
    output: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    alternatives: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: OnnxModule, batch: int) -> Graph:
        """Return the graph of a network for one batch size, consisting of nodes only.

        Args:
            module: Network as read from a file.
            batch: Number of images in a run.
        """
        frozen = module.frozen(batch)
        values = dict(frozen.constants)
        values[frozen.input_name] = torch.zeros(batch, *frozen.input_shape)
        with torch.no_grad():
            for node in frozen.nodes:
                values |= node.run([values[name] for name in node.inputs])
        return cls(
            frozen.nodes,
            frozen.constants,
            {name: tuple(v.shape) for name, v in values.items() if isinstance(v, Tensor)},
            frozen.input_name,
            frozen.output_name,
        )

    @cached_property
    def _makers(self) -> dict[str, Step]:
        return {name: step for step in self.steps for name in step.outputs}

    @cached_property
    def _readers(self) -> dict[str, list[Step]]:
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            for name in dict.fromkeys(step.inputs):
                found.setdefault(name, []).append(step)
        return found

    def maker(self, name: str) -> Step | None:
        """Return the step that computes a value; None for inputs and constants."""
        return self._makers.get(name)

    def readers(self, name: str) -> list[Step]:
        """Return the steps that read a value, in order of execution.

        The list is empty for the graph's output, because it is also read outside of the graph.
        """
        return [] if name == self.output else self._readers.get(name, [])

    def reader(self, name: str) -> Step | None:
        """Return the only step that reads a value; None for several steps, or for the output."""
        found = self.readers(name)
        return found[0] if len(found) == 1 else None

    def tensor(self, name: str) -> Tensor | None:
        """Return the constant tensor of this name, or None if there is none."""
        value = self.constants.get(name)
        return value if isinstance(value, Tensor) else None

    def number(self, name: str) -> float | None:
        """Return the constant of this name as a number, or None if it is not a single number."""
        value = self.constants.get(name)
        if isinstance(value, Tensor) and value.numel() == 1:
            return float(value)
        return float(value) if isinstance(value, int | float) else None

    def rewritten(self, change: Rewrite) -> Graph:
        """Return the graph with a rewrite applied."""
        gone = {step.outputs[0] for step in change.old}
        last = [step.outputs[0] for step in self.steps if step.outputs[0] in gone][-1]
        steps: list[Step] = []
        for step in self.steps:
            if step.outputs[0] == last:
                steps += change.new
            elif step.outputs[0] not in gone:
                steps.append(step)
        return replace(
            self,
            steps=_in_order(steps),
            shapes={**self.shapes, **change.shapes},
            constants={**self.constants, **change.constants},
        )

    @property
    def complete(self) -> bool:
        """True if each value that is read is computed, a constant or the input."""
        known = {self.input, *self._makers, *self.constants}
        return self.output in known and all(known.issuperset(step.inputs) for step in self.steps)

    def sizes(self, call: OperatorCall, dtype: torch.dtype) -> Sizes:
        """Return the sizes of a call's inputs, where the network computes in ``dtype``.

        Raises:
            KernelError: The operator does not accept these inputs.
        """
        return call.operator.sizes(self.bound(call, dtype))

    def bound(self, call: OperatorCall, dtype: torch.dtype) -> Inputs:
        """Return a call's inputs without values, on the device ``meta``.

        Raises:
            KernelError: The operator does not accept these inputs.
        """
        dtype = call.type_in(dtype)

        def like(shape: Shape, own: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=own, device="meta")

        values = {
            value: like(self.shapes[value], dtype if name in _ALIKE else call.floats_in(dtype))
            for name, value in call.reads.items()
        }
        weights = {
            name: like(weight.shape, call.weight_type(weight, dtype))
            for name, weight in call.weights.items()
        }
        return call.operator.bound(**call.arguments(values), **weights)

    def with_reason(self, step: Step, reason: str) -> Graph:
        """Return the graph with a recorded reason why a step is not part of a call."""
        return replace(self, reasons={**self.reasons, step.outputs[0]: reason})

    def with_alternative(self, call: OperatorCall, reason: str) -> Graph:
        """Return the graph with a recorded reason why a call of another operator is not used."""
        return replace(self, alternatives={**self.alternatives, call.outputs[0]: reason})


Rule = Callable[[Graph, Step], Rewrite | str | None]
"""Function of a graph and a step that rewrites the step and its neighbours.

It returns the new steps, or the reason why the step stays as it is, or None where the rule does not
apply to such a step.
"""


def _in_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps in topological order, and in the given order where that allows it."""
    makers = {name: step for step in steps for name in step.outputs}
    placed: dict[str, Step] = {}

    def place(step: Step) -> None:
        if step.outputs[0] in placed:
            return
        for name in step.inputs:
            if name in makers:
                place(makers[name])
        placed[step.outputs[0]] = step

    for step in steps:
        place(step)
    return tuple(placed.values())
