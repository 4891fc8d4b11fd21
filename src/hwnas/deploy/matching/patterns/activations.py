"""Recognition of activations in the forms in which exporters write them."""

from __future__ import annotations

import math

from hwnas.deploy.matching.graph import Graph, Rewrite, Step, is_node
from hwnas.deploy.onnx.module import Node

__all__ = ["activation_of", "gather_products"]

_PLAIN = {"Relu": "relu", "HardSwish": "hard_swish", "Sigmoid": "sigmoid"}


def activation_of(graph: Graph, step: Step | None) -> str | None:
    """Return a step's name in `hwnas.kernels.primitives.activations`; None if it has none."""
    if not is_node(step):
        return None
    attributes = step.attributes
    if step.kind in _PLAIN:
        return _PLAIN[step.kind]
    if step.kind == "Clip":
        return _clip(graph, step)
    if step.kind == "HardSigmoid":
        alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
        return "hard_sigmoid" if _near(alpha, 1 / 6) and beta == 0.5 else None
    if step.kind == "Gelu":
        return "gelu" if attributes.get("approximate", "none") == "none" else None
    if step.kind == "Swish":
        return "silu" if attributes.get("alpha", 1.0) == 1.0 else None
    return None


def gather_products(graph: Graph, step: Step) -> Rewrite | None:
    """Replace an activation that is written as a product by one node.

    Examples are x * sigmoid(x), x * hard_sigmoid(x) and GELU.
    """
    if not is_node(step, "Mul"):
        return None
    return _gated(graph, step) or _gelu(graph, step)


def _clip(graph: Graph, node: Node) -> str | None:
    given = [name for name in node.inputs[1:] if name]
    if any(graph.number(name) is None for name in given):
        return None
    low, high = (
        graph.number(node.inputs[place]) if len(node.inputs) > place else node.attributes.get(name)
        for place, name in ((1, "min"), (2, "max"))
    )
    if low != 0:
        return None
    return "relu" if high is None else "relu6" if high == 6 else None


def _gated(graph: Graph, product: Node) -> Rewrite | None:
    """Match x * sigmoid(x), which is swish, or x * hard_sigmoid(x), which is hard-swish."""
    kinds = {"sigmoid": "Swish", "hard_sigmoid": "HardSwish"}
    for x, factor in (product.inputs, product.inputs[::-1]):
        inner = graph.maker(factor)
        name = activation_of(graph, inner)
        if is_node(inner) and name in kinds and inner.inputs[0] == x:
            return _as_one(graph, kinds[name], x, [inner, product])
    return None


def _gelu(graph: Graph, product: Node) -> Rewrite | None:
    """Match 0.5 x (1 + erf(x / sqrt(2))), with its factors in any order."""
    factors, nodes = _factors(graph, product)
    halves = [graph.number(name) for name in factors]
    if len(factors) != 3 or 0.5 not in halves:
        return None
    rest = [name for name, value in zip(factors, halves, strict=True) if value != 0.5]
    for x, other in (rest, rest[::-1]):
        one = graph.maker(other)
        if not is_node(one, "Add"):
            continue
        terms = [name for name in one.inputs if graph.number(name) != 1]
        erf = graph.maker(terms[0]) if len(terms) == 1 else None
        if not is_node(erf, "Erf"):
            continue
        scaled = graph.maker(erf.inputs[0])
        if is_node(scaled) and _is_over_root_two(graph, scaled, x):
            return _as_one(graph, "Gelu", x, [scaled, erf, one, *nodes])
    return None


def _factors(graph: Graph, product: Node) -> tuple[list[str], list[Node]]:
    """Return the factors of a product, and its nodes.

    If one factor is itself a product that nothing else reads, its factors take its place.
    """
    for name, other in (product.inputs, product.inputs[::-1]):
        inner = graph.maker(name)
        if is_node(inner, "Mul") and graph.reader(name) is product:
            return [*inner.inputs, other], [inner, product]
    return list(product.inputs), [product]


def _is_over_root_two(graph: Graph, node: Node, x: str) -> bool:
    wanted = {"Div": math.sqrt(2), "Mul": math.sqrt(0.5)}.get(node.kind)
    if wanted is None or x not in node.inputs or (node.kind == "Div" and node.inputs[0] != x):
        return False
    numbers = [value for name in node.inputs if (value := graph.number(name)) is not None]
    return len(numbers) == 1 and _near(numbers[0], wanted)


def _as_one(graph: Graph, kind: str, x: str, nodes: list[Node]) -> Rewrite | None:
    """Replace several nodes by one, if no other node reads a value between them."""
    inside = {node.outputs[0] for node in nodes}
    for node in nodes[:-1]:
        readers = graph.readers(node.outputs[0])
        if not readers or any(reader.outputs[0] not in inside for reader in readers):
            return None
    return Rewrite(nodes, [Node(kind, (x,), nodes[-1].outputs, {})])


def _near(a: float, b: float) -> bool:
    return abs(a - b) < 1e-5
