"""Rules and queries for quantised files in QDQ format, in which floats stand between int8 values.

The floats are between ``DequantizeLinear`` and ``QuantizeLinear``. Where an int8 operator covers
the layers between the two, both nodes become part of its call. Where no operator does, PyTorch
computes in floats and rounds as the file prescribes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hwnas.deploy.matching.graph import VIEWS, Graph, Rewrite, Step, is_node
from hwnas.deploy.onnx.module import Node

__all__ = [
    "QuantisationParameters",
    "RoundedSum",
    "dequantise_constants",
    "drop_unread",
    "move_views",
    "rounded_sum",
    "rounding_after",
    "sign_steps",
    "steps_of",
    "stored_as",
]


@dataclass(frozen=True)
class QuantisationParameters:
    """Quantisation parameters of int8 values: a value is scale * (step - zero)."""

    scale: float
    zero: int


def steps_of(graph: Graph, step: Step | None) -> QuantisationParameters | None:
    """Return the int8 quantisation parameters of a node that quantises or dequantises, if any."""
    if not is_node(step, "QuantizeLinear", "DequantizeLinear") or len(step.inputs) < 3:
        return None
    scale, zero = graph.number(step.inputs[1]), graph.tensor(step.inputs[2])
    if scale is None or zero is None or zero.dtype != torch.int8 or zero.numel() != 1:
        return None
    return QuantisationParameters(scale, int(zero))


def stored_as(graph: Graph, name: str) -> tuple[str, QuantisationParameters] | None:
    """Return the int8 value that a float is dequantised from, and its quantisation parameters.

    The result is None for a float that is not dequantised, or comes from a constant.
    """
    maker = graph.maker(name)
    steps = steps_of(graph, maker)
    if steps is None or not is_node(maker, "DequantizeLinear"):
        return None
    return None if maker.inputs[0] in graph.constants else (maker.inputs[0], steps)


def rounding_after(graph: Graph, name: str) -> tuple[Node, QuantisationParameters] | None:
    """Return the node that alone reads a float and quantises it, and its parameters, if any."""
    reader = graph.reader(name)
    steps = steps_of(graph, reader)
    return (reader, steps) if is_node(reader, "QuantizeLinear") and steps is not None else None


@dataclass(frozen=True)
class RoundedSum:
    """Addition to int8 values that is rounded again, by three nodes that nothing else reads.

    Attributes:
        nodes: Nodes that dequantise, add and quantise.
        other: Name of the added value.
        steps: Quantisation parameters of the result.
    """

    nodes: tuple[Node, Node, Node]
    other: str
    steps: QuantisationParameters

    @property
    def kinds(self) -> list[str]:
        """Kinds of the nodes."""
        return [node.kind for node in self.nodes]

    @property
    def output(self) -> str:
        """Name of the result."""
        return self.nodes[2].outputs[0]


def rounded_sum(graph: Graph, step: Step) -> RoundedSum | None:
    """Return the rounded sum that is the only reader of a step's int8 output, or None."""
    back = graph.reader(step.outputs[0])
    if not is_node(back, "DequantizeLinear"):
        return None
    added = graph.reader(back.outputs[0])
    if not is_node(added, "Add"):
        return None
    after = rounding_after(graph, added.outputs[0])
    others = [name for name in added.inputs if name != back.outputs[0]]
    if after is None or len(others) != 1:
        return None
    return RoundedSum((back, added, after[0]), others[0], after[1])


def sign_steps(graph: Graph, step: Step) -> Rewrite | None:
    """Replace uint8 quantisation, 0 to 255, by int8, -128 to 127, which the operators expect."""
    if not is_node(step, "QuantizeLinear") or len(step.inputs) < 3:
        return None
    zero, readers = graph.tensor(step.inputs[2]), graph.readers(step.outputs[0])
    if zero is None or zero.dtype != torch.uint8 or zero.numel() != 1:
        return None
    old = [each for each in (step, *readers) if is_node(each) and len(each.inputs) == 3]
    zeros = [graph.number(each.inputs[2]) for each in old]
    if len(old) <= len(readers) or set(zeros) != {float(zero)}:
        return None
    name = f"{step.inputs[2]}/signed"
    new = [replace(each, inputs=(*each.inputs[:2], name)) for each in old]
    return Rewrite(old, new, {}, {name: (zero.int() - 128).to(torch.int8)})


def move_views(graph: Graph, step: Step) -> Rewrite | None:
    """Reshape int8 values instead of the floats between them.

    The rule applies where both sides have the same quantisation parameters.
    """
    if not is_node(step, *VIEWS) or len(step.outputs) != 1:
        return None
    source, after = stored_as(graph, step.inputs[0]), rounding_after(graph, step.outputs[0])
    if source is None or after is None or step.kind == "Cast" or source[1] != after[1]:
        return None
    moved = replace(step, inputs=(source[0], *step.inputs[1:]), outputs=after[0].outputs)
    return Rewrite([step, after[0]], [moved])


def dequantise_constants(graph: Graph, step: Step) -> Rewrite | None:
    """Convert weights that no int8 operator takes to floats."""
    if not is_node(step, "DequantizeLinear") or step.inputs[0] not in graph.constants:
        return None
    values = step.run([graph.constants[name] for name in step.inputs])
    return Rewrite([step], [], {}, values)


def drop_unread(graph: Graph, step: Step) -> Rewrite | None:
    """Remove the dequantisation of a value that nothing reads any more."""
    if not is_node(step, "DequantizeLinear") or graph.output in step.outputs:
        return None
    return None if graph.readers(step.outputs[0]) else Rewrite([step], [])
