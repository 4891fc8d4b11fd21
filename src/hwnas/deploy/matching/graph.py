"""A network as steps that can be rewritten: nodes of an ONNX file, and calls of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeGuard

import torch
from torch import Tensor

from hwnas.deploy.matching.windows import Windows
from hwnas.deploy.onnx_module import Node, OnnxModule
from hwnas.kernels.operator import Operator, Sizes

__all__ = ["VIEWS", "Call", "Graph", "Rewrite", "Rule", "Step", "is_call", "is_node"]

Shape = tuple[int, ...]
VIEWS = ("Cast", "Dropout", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze",
         "Transpose", "Unsqueeze")  # fmt: skip
"""What names other shapes for values that are there, as a rule without moving them."""
_ALIKE = ("x", "residual")  # arguments of one type


@dataclass(frozen=True)
class Call:
    """A call of an operator, in the place of some nodes.

    Attributes:
        operator: Of `hwnas.kernels`.
        reads: Names of values, by the operator's argument.
        weights: Constants as the operator takes them, by argument, in float32.
        options: All other arguments that are not their defaults.
        outputs: Names of what it computes.
        nodes: Kinds of the nodes that it stands for.
        maps: Whether x, residual and y are feature maps, which are NCHW in the graph and NHWC for
            the operator: the same memory. Heads of y are side by side then.
        dtype: Of x, if not that of the network.
        windows: What x is made of, if the operator does not read the map as it is.
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
        """Names of all that it reads."""
        return tuple(self.reads.values())

    @property
    def activation(self) -> str:
        """What is folded into it."""
        return str(self.options.get("activation", "none"))

    def type_in(self, dtype: torch.dtype) -> torch.dtype:
        """What it computes in where the network computes in some type."""
        return self.dtype or dtype

    def weight_type(self, weight: Tensor, dtype: torch.dtype) -> torch.dtype:
        """What one of its weights is rounded to where it computes in some type."""
        return self.floats_in(dtype) if weight.is_floating_point() else weight.dtype

    @staticmethod
    def floats_in(dtype: torch.dtype) -> torch.dtype:
        """The type of what is no integer beside an x of some type."""
        return dtype if dtype.is_floating_point else torch.float32

    def and_then(self, nodes: Sequence[str], output: str, **changes: Any) -> Call:
        """The same with nodes after it folded in, whose output is now its first."""
        outputs = (output, *self.outputs[1:])
        return replace(self, outputs=outputs, nodes=(*self.nodes, *nodes), **changes)

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the operator is called with, but for weights, from values of the graph."""
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
        """Values of the graph, by name, from what the operator gives."""
        tensors = computed if isinstance(computed, tuple) else (computed,)
        found = dict(zip(self.outputs, tensors, strict=False))
        if self.maps and tensors[0].dim() > 2:
            found[self.outputs[0]] = tensors[0].flatten(3).permute(0, 3, 1, 2)
        return found


Step = Node | Call


def is_node(step: Step | None, *kinds: str) -> TypeGuard[Node]:
    """Whether a step is a node, of one of these kinds if any are given."""
    return isinstance(step, Node) and (not kinds or step.kind in kinds)


def is_call(step: Step | None, *operators: str) -> TypeGuard[Call]:
    """Whether a step is a call of one of these operators."""
    return isinstance(step, Call) and step.operator.name in operators


@dataclass(frozen=True)
class Rewrite:
    """New steps for old ones.

    Attributes:
        old: Steps that are no longer needed.
        new: What computes the same.
        shapes: Of values that are new.
        constants: That the new steps need.
    """

    old: Sequence[Step]
    new: Sequence[Step]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Steps in the order of execution.

    Attributes:
        steps: Each reads what earlier ones compute.
        constants: Weights, numbers and lists of integers by name; None for what is left out.
        shapes: Of all tensors, by name.
        input: Name of the only input.
        output: Name of the only output.
        reasons: Why nodes are no calls, by name of their first output, where that is known.
    """

    steps: tuple[Step, ...]
    constants: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    input: str
    output: str
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: OnnxModule, batch: int) -> Graph:
        """A network for one batch size, all of it nodes.

        Args:
            module: As read from a file.
            batch: Images a run.
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
        """The step that computes a value; None for inputs and constants."""
        return self._makers.get(name)

    def readers(self, name: str) -> list[Step]:
        """Steps that read a value, in their order; none of an output, which others read, too."""
        return [] if name == self.output else self._readers.get(name, [])

    def reader(self, name: str) -> Step | None:
        """The only step that reads a value; None if there are several, or it is the output."""
        found = self.readers(name)
        return found[0] if len(found) == 1 else None

    def tensor(self, name: str) -> Tensor | None:
        """A weight; None if the name is not one's."""
        value = self.constants.get(name)
        return value if isinstance(value, Tensor) else None

    def number(self, name: str) -> float | None:
        """A constant that is one number; None if the name is not one's."""
        value = self.constants.get(name)
        if isinstance(value, Tensor) and value.numel() == 1:
            return float(value)
        return float(value) if isinstance(value, int | float) else None

    def rewritten(self, change: Rewrite) -> Graph:
        """The graph with a change made."""
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
        """Whether all that is read is computed."""
        known = {self.input, *self._makers, *self.constants}
        return self.output in known and all(known.issuperset(step.inputs) for step in self.steps)

    def sizes(self, call: Call, dtype: torch.dtype) -> Sizes:
        """Sizes of what a call is called with, where the network computes in some type.

        Raises:
            KernelError: The operator does not take that.
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
        return call.operator.sizes(call.operator.bound(**call.arguments(values), **weights))

    def with_reason(self, step: Step, reason: str) -> Graph:
        """The graph with a note why a step is no call."""
        return replace(self, reasons={**self.reasons, step.outputs[0]: reason})


Rule = Callable[[Graph, Step], Rewrite | str | None]
"""What becomes of a step and its neighbours: new steps, a reason why nothing does, or None where
the rule is not about such a step."""


def _in_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps, each after those that compute what it reads, else in their order."""
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
