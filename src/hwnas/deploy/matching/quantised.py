"""What quantised files say, and what of it is not needed: floats between values of eight bits.

A quantised file has floats between ``DequantizeLinear`` and ``QuantizeLinear``. Where an operator
in int8 takes what stands between the two, they are part of its call; where none does, PyTorch
computes it in floats, and rounds as the file says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hwnas.deploy.matching.graph import VIEWS, Graph, Rewrite, Step, is_node
from hwnas.deploy.onnx_module import Node

__all__ = [
    "RoundedSum",
    "Steps",
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
class Steps:
    """What int8 values stand for: scale * (step - zero)."""

    scale: float
    zero: int


def steps_of(graph: Graph, step: Step | None) -> Steps | None:
    """What a node that rounds, or the one that undoes it, says of its int8 values."""
    if not is_node(step, "QuantizeLinear", "DequantizeLinear") or len(step.inputs) < 3:
        return None
    scale, zero = graph.number(step.inputs[1]), graph.tensor(step.inputs[2])
    if scale is None or zero is None or zero.dtype != torch.int8 or zero.numel() != 1:
        return None
    return Steps(scale, int(zero))


def stored_as(graph: Graph, name: str) -> tuple[str, Steps] | None:
    """The int8 value that a float is made of, which is no constant, and what it stands for."""
    maker = graph.maker(name)
    steps = steps_of(graph, maker)
    if steps is None or not is_node(maker, "DequantizeLinear"):
        return None
    return None if maker.inputs[0] in graph.constants else (maker.inputs[0], steps)


def rounding_after(graph: Graph, name: str) -> tuple[Node, Steps] | None:
    """The node that rounds a float that nothing else reads, and to what."""
    reader = graph.reader(name)
    steps = steps_of(graph, reader)
    return (reader, steps) if is_node(reader, "QuantizeLinear") and steps is not None else None


@dataclass(frozen=True)
class RoundedSum:
    """Something added to int8 values and rounded again, by three nodes that nothing else reads.

    Attributes:
        nodes: From int8, the sum, and to int8.
        other: Name of what is added.
        steps: What the outcome stands for.
    """

    nodes: tuple[Node, Node, Node]
    other: str
    steps: Steps

    @property
    def kinds(self) -> list[str]:
        """Of the nodes."""
        return [node.kind for node in self.nodes]

    @property
    def output(self) -> str:
        """Name of the outcome."""
        return self.nodes[2].outputs[0]


def rounded_sum(graph: Graph, step: Step) -> RoundedSum | None:
    """That of the int8 values that a step gives, if that is all that is done with them."""
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
    """Steps from 0 to 255 as steps from -128 to 127, which the operators take."""
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
    """Another shape of int8 values instead of floats that are rounded to what they were."""
    if not is_node(step, *VIEWS) or len(step.outputs) != 1:
        return None
    source, after = stored_as(graph, step.inputs[0]), rounding_after(graph, step.outputs[0])
    if source is None or after is None or step.kind == "Cast" or source[1] != after[1]:
        return None
    moved = replace(step, inputs=(source[0], *step.inputs[1:]), outputs=after[0].outputs)
    return Rewrite([step, after[0]], [moved])


def dequantise_constants(graph: Graph, step: Step) -> Rewrite | None:
    """Weights that no int8 operator takes, in floats."""
    if not is_node(step, "DequantizeLinear") or step.inputs[0] not in graph.constants:
        return None
    values = step.run([graph.constants[name] for name in step.inputs])
    return Rewrite([step], [], {}, values)


def drop_unread(graph: Graph, step: Step) -> Rewrite | None:
    """Nothing for what makes floats that nobody reads any more."""
    if not is_node(step, "DequantizeLinear") or graph.output in step.outputs:
        return None
    return None if graph.readers(step.outputs[0]) else Rewrite([step], [])
