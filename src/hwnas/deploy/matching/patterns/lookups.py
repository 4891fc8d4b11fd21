"""Rules that replace elementwise functions between int8 values by tables of 256 entries.

Any function of one int8 value whose result is quantised to int8 is such a table, however many
quantisations it has inside. The layer before it applies the table when it stores its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hwnas.deploy.matching.graph import VIEWS, Graph, Rewrite, Step, is_node
from hwnas.deploy.matching.patterns.int8_layers import is_int8_layer
from hwnas.deploy.matching.patterns.quantised import (
    QuantisationParameters,
    rounded_sum,
    steps_of,
    stored_as,
)
from hwnas.deploy.onnx.module import Node

__all__ = ["Lookup", "fold_int8_residual", "fold_lookup", "gather_lookup"]

_BY_VALUE = ("Add", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
             "Mul", "Pow", "Relu", "Sigmoid", "Sqrt", "Sub", "Swish", "Tanh")  # fmt: skip


@dataclass(frozen=True)
class Lookup(Node):
    """Node that maps int8 values by a table (256,), whose first entry is that of step -128.

    Its attributes are ``steps``, the quantisation parameters of its output, and ``nodes``, the
    kinds of the nodes that it replaces.
    """

    def run(self, arguments: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the output by name."""
        steps, table = arguments
        return {self.outputs[0]: table[steps.int() + 128]}


def gather_lookup(graph: Graph, step: Step) -> Rewrite | None:
    """Replace the nodes of a function of one int8 value, up to its rounding, by a table."""
    steps = steps_of(graph, step)
    if steps is None or not is_node(step, "QuantizeLinear"):
        return None
    found = _function(graph, step)
    if found is None:
        return None
    root, nodes = found
    values = {root: torch.arange(-128, 128, dtype=torch.int32).to(torch.int8), **graph.constants}
    for node in nodes:
        values |= node.run([values[name] for name in node.inputs])
    [output] = step.outputs
    table = f"{output}/table"
    inner = [node for node in nodes if node.inputs[0] != root or _is_inside(graph, node, nodes)]
    kinds = [kind for node in inner for kind in node.attributes.get("nodes", (node.kind,))]
    lookup = Lookup("Lookup", (root, table), (output,), {"steps": steps, "nodes": tuple(kinds)})
    return Rewrite(inner, [lookup], {}, {table: values[output].flatten()})


def fold_lookup(graph: Graph, step: Step) -> Rewrite | None:
    """Fold a table that directly follows a layer, or follows it after reshapes, into the layer."""
    if not is_int8_layer(step) or "residual" in step.reads:
        return None
    views: list[Node] = []
    after = graph.reader(step.outputs[0])
    while is_node(after, *VIEWS) and len(after.outputs) == 1:
        views.append(after)
        after = graph.reader(after.outputs[0])
    if not isinstance(after, Lookup):
        return None
    steps: QuantisationParameters = after.attributes["steps"]
    values = graph.constants[after.inputs[1]]
    if "table" in step.weights:
        values = values[_outcome(step.weights["table"], step.options["y_zero"]) + 128]
    options = {"table_zero": step.options["y_zero"], **step.options}
    options |= {"y_scale": steps.scale, "y_zero": steps.zero}
    table = values.float() - steps.zero
    first = step.outputs[0] if views else after.outputs[0]
    call = step.and_then(
        after.attributes["nodes"], first, weights={**step.weights, "table": table}, options=options
    )
    moved = [*views[:-1], replace(views[-1], outputs=after.outputs)] if views else []
    return Rewrite([step, *views, after], [call, *moved])


def fold_int8_residual(graph: Graph, step: Step) -> Rewrite | None:
    """Fold the sum of a layer's output and another int8 value into the layer."""
    if not is_int8_layer(step) or "residual" in step.reads:
        return None
    found = rounded_sum(graph, step)
    other = None if found is None else stored_as(graph, found.other)
    if found is None or other is None:
        return None
    (residual, added_steps), steps = other, found.steps
    if graph.shapes[residual] != graph.shapes[step.outputs[0]]:
        return None
    options = dict(step.options)
    own = torch.arange(-128, 128)
    if "table" in step.weights:
        own = _outcome(step.weights["table"], options["y_zero"])
    table = (own - options["y_zero"]).float() * (options["y_scale"] / steps.scale)
    options = {"table_zero": options["y_zero"], **options}
    options |= {"y_scale": steps.scale, "y_zero": steps.zero}
    options |= {"residual_scale": added_steps.scale, "residual_zero": added_steps.zero}
    call = step.and_then(
        found.kinds,
        found.output,
        reads={**step.reads, "residual": residual},
        weights={**step.weights, "table": table},
        options=options,
    )
    return Rewrite([step, *found.nodes], [call])


def _outcome(table: Tensor, zero: int) -> Tensor:
    """Return the int8 steps that a layer with a table and no residual stores."""
    return (table.round() + zero).clamp(-128, 127).long()


def _function(graph: Graph, rounding: Node) -> tuple[str, list[Node]] | None:
    """Return the int8 value that determines a rounded value, and the nodes between them in order.

    The result is None if the rounded value is not a function of a single int8 value.
    """
    found = _expression(graph, rounding.inputs[0])
    if found is None:
        return None
    sources, names = found
    order = [step.outputs[0] for step in graph.steps]
    while len(sources) > 1:
        # The latest may be a function of the others, as in x and hard_sigmoid(x), both rounded.
        latest = max(sources, key=order.index)
        inner = _rounded(graph, latest)
        if inner is None:
            return None
        sources = (sources - {latest}) | inner[0]
        names = names | inner[1] | {latest}
    if not sources:
        return None
    names = names | set(rounding.outputs)
    return sources.pop(), [n for n in graph.steps if is_node(n) and n.outputs[0] in names]


def _is_inside(graph: Graph, node: Node, nodes: Sequence[Node]) -> bool:
    """Return whether a node is the last of some nodes, or only those nodes read its output."""
    [output], readers = node.outputs, graph.readers(node.outputs[0])
    inside = {each.outputs[0] for each in nodes}
    within = output != graph.output and all(each.outputs[0] in inside for each in readers)
    return node is nodes[-1] or within


def _rounded(graph: Graph, name: str) -> tuple[set[str], set[str]] | None:
    """Return sources and nodes, as `_expression` does, of an int8 value that a node computes."""
    maker = graph.maker(name)
    if isinstance(maker, Lookup):
        return {maker.inputs[0]}, set()
    return _expression(graph, maker.inputs[0]) if is_node(maker, "QuantizeLinear") else None


def _expression(graph: Graph, name: str) -> tuple[set[str], set[str]] | None:
    """Return the int8 values that determine a float elementwise, and outputs of the nodes between.

    The result is None if another kind of node or value is involved.
    """
    if graph.number(name) is not None or not name:
        return set(), set()
    stored = stored_as(graph, name)
    if stored is not None:
        return {stored[0]}, {name}
    maker = graph.maker(name)
    if not is_node(maker, *_BY_VALUE):
        return None
    parts = [_expression(graph, each) for each in maker.inputs]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    sources = set().union(*(part[0] for part in known))
    return sources, {name}.union(*(part[1] for part in known))
