"""Rule that matches group normalisation, which exporters write as five operators."""

from __future__ import annotations

from hwnas.deploy.matching.graph import Graph, Rewrite, Step, is_node
from hwnas.deploy.onnx.module import Node

__all__ = ["gather_group_norm"]


def gather_group_norm(graph: Graph, step: Step) -> Rewrite | None:
    """Replace a group normalisation that is exported as instance normalisation by one node.

    The exported form reshapes the map to one channel for each group, in which the map's memory
    layout would be lost.
    """
    if not is_node(step, "InstanceNormalization"):
        return None
    grouped, back = graph.maker(step.inputs[0]), graph.reader(step.outputs[0])
    product = graph.reader(back.outputs[0]) if is_node(back, "Reshape") else None
    total = graph.reader(product.outputs[0]) if is_node(product, "Mul") else None
    if not is_node(grouped, "Reshape") or not is_node(total, "Add"):
        return None
    if back is None or not is_node(product):
        return None
    x = grouped.inputs[0]
    if graph.shapes[x] != graph.shapes[total.outputs[0]] or not _is_plain(graph, step):
        return None
    scale, shift = (_for_channels(graph, node, graph.shapes[x]) for node in (product, total))
    if scale is None or shift is None:
        return None
    groups = graph.shapes[grouped.outputs[0]][1]
    attributes = {"num_groups": groups, "epsilon": step.attributes.get("epsilon", 1e-5)}
    norm = Node("GroupNormalization", (x, scale, shift), total.outputs, attributes)
    return Rewrite([grouped, step, back, product, total], [norm])


def _is_plain(graph: Graph, node: Node) -> bool:
    """Return whether an instance normalisation has a scale of one and a shift of zero."""
    scale, shift = (graph.tensor(name) for name in node.inputs[1:3])
    return scale is not None and shift is not None and bool((scale == 1).all()) and not shift.any()


def _for_channels(graph: Graph, node: Node, shape: tuple[int, ...]) -> str | None:
    """Return the name of the input of a node that holds one constant for each channel, if any."""
    wanted = (shape[1], *(1 for _ in shape[2:]))
    for name in node.inputs:
        value = graph.tensor(name)
        if value is not None and tuple(value.shape) in (wanted, (1, *wanted)):
            return name
    return None
