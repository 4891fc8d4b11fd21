"""Rules for attention: as in transformers, and slimmed attention of feature maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Step, is_call, is_node
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.operators.attention import attention
from hwnas.kernels.operators.slim_attention import slim_attention

__all__ = ["match_attention", "match_slim_attention"]

_HEADS_FIRST = [0, 2, 1, 3]  # (N, T, h, d) to (N, h, T, d), and back
_CHANNELS_FIRST = [0, 2, 3, 1]  # (N, T, h, d) to (N, h, d, T)
_TURNED = [0, 1, 3, 2]


def match_attention(graph: Graph, step: Step) -> Rewrite | str | None:
    """Match scaled dot-product attention (Vaswani et al., NeurIPS 2017) around its softmax."""
    if not is_node(step, "Softmax"):
        return None
    scores, mixed = graph.maker(step.inputs[0]), graph.reader(step.outputs[0])
    if not (is_node(scores, "MatMul") and is_node(mixed, "MatMul")):
        return "it is not between two matrix products"
    last = graph.reader(mixed.outputs[0])
    query, by_query, scaling = _scaled(graph, scores.inputs[0])
    key, by_key, more = _scaled(graph, scores.inputs[1])
    turned = (
        _heads_last(graph, query, _HEADS_FIRST),
        _heads_last(graph, key, _CHANNELS_FIRST),
        _heads_last(graph, mixed.inputs[1], _HEADS_FIRST),
    )
    sources = [each for each in turned if each is not None]
    if len(sources) < 3 or not _turns(last, _HEADS_FIRST):
        return "its heads are not laid out as (N, T, h, d)"
    width = graph.shapes[sources[0][0]][-1]
    if not math.isclose(by_query * by_key, width**-0.5, rel_tol=1e-5):
        return "its scale is not 1 / sqrt(d)"
    names = ("query", "key", "value")
    reads = {name: value for name, (value, _) in zip(names, sources, strict=True)}
    nodes = [*scaling, *more, *(node for _, own in sources for node in own)]
    nodes += [scores, step, mixed, last]
    call = OperatorCall(attention, reads, {}, {}, last.outputs, tuple(node.kind for node in nodes))
    return Rewrite(nodes, [call])


def match_slim_attention(graph: Graph, step: Step) -> Rewrite | None:
    """Match attention between the pixels of a channels-first map, with its pointwise layers.

    Queries, keys and values are pointwise convolutions of one map, (N, h d, H, W), each reshaped to
    (N, h, d, H W).
    """
    if not is_node(step, "Softmax"):
        return None
    scores, turned = graph.maker(step.inputs[0]), graph.reader(step.outputs[0])
    mixed = graph.reader(turned.outputs[0]) if _turns(turned, _TURNED) else None
    if turned is None or not (is_node(scores, "MatMul") and is_node(mixed, "MatMul")):
        return None
    queries, last = graph.maker(scores.inputs[0]), graph.reader(mixed.outputs[0])
    if not _turns(queries, _TURNED) or not is_node(last, "Reshape"):
        return None
    query, scale, scaling = _scaled(graph, queries.inputs[0])
    projected = [_projected(graph, name) for name in (query, scores.inputs[1], mixed.inputs[0])]
    pairs = [each for each in projected if each is not None]
    layers = [layer for layer, _ in pairs]
    if len(pairs) < 3 or len({layer.reads["x"] for layer in layers}) > 1:
        return None
    _, heads, width, _ = graph.shapes[query]
    if not math.isclose(scale, width**-0.5, rel_tol=1e-5):
        return None
    nodes = [
        *(reshape for _, reshape in pairs),
        *scaling,
        queries,
        scores,
        step,
        turned,
        mixed,
        last,
    ]
    kinds = [kind for layer in layers for kind in layer.nodes]
    kinds += [node.kind for node in nodes if is_node(node)]
    weights = _side_by_side(layers, heads, width)
    reads = {"x": layers[0].reads["x"]}
    call = OperatorCall(slim_attention, reads, weights, {}, last.outputs, tuple(kinds), maps=True)
    return Rewrite([*layers, *nodes], [call])


def _projected(graph: Graph, name: str) -> tuple[OperatorCall, Node] | None:
    """Return the plain pointwise convolution behind a reshaped value, and the reshape, or None."""
    reshape = graph.maker(name)
    layer = graph.maker(reshape.inputs[0]) if is_node(reshape, "Reshape") else None
    if not is_node(reshape) or not is_call(layer, "pointwise") or not layer.maps:
        return None
    if layer.windows is not None:
        return None
    return (layer, reshape) if set(layer.reads) == {"x"} and layer.activation == "none" else None


def _side_by_side(layers: Sequence[OperatorCall], heads: int, width: int) -> dict[str, Tensor]:
    """Return weights (C, 3, h, d) of three layers, and biases (3, h, d) unless all are zero."""
    weights, biases = ([layer.weights[name] for layer in layers] for name in ("weight", "bias"))
    joined = {"weight": torch.stack([w.reshape(-1, heads, width) for w in weights], 1)}
    if any(bias.any() for bias in biases):
        joined["bias"] = torch.stack([bias.reshape(heads, width) for bias in biases])
    return joined


def _scaled(graph: Graph, name: str) -> tuple[str, float, list[Node]]:
    """Return the name of the value before scaling, its factor, and the scaling node in a list.

    If the value is not scaled, return its own name, 1.0 and an empty list.
    """
    node = graph.maker(name)
    if is_node(node, "Mul", "Div"):
        for value, factor in (node.inputs, node.inputs[::-1]):
            number = graph.number(factor)
            if number is not None and (node.kind == "Mul" or factor == node.inputs[1]):
                return value, number if node.kind == "Mul" else 1 / number, [node]
    return name, 1.0, []


def _heads_last(graph: Graph, name: str, perm: Sequence[int]) -> tuple[str, list[Node]] | None:
    """Return the (N, T, h, d) value that one or two transpositions turn into a given value.

    The transpositions are returned with it; both together must permute the axes by ``perm``.
    """
    turned: list[Node] = []
    order = [0, 1, 2, 3]
    while len(turned) < 2:
        node = graph.maker(name)
        if not is_node(node, "Transpose") or len(node.attributes["perm"]) != 4:
            return None
        order = [node.attributes["perm"][axis] for axis in order]
        turned.append(node)
        name = node.inputs[0]
        if order == list(perm):
            return name, turned
    return None


def _turns(step: Step | None, perm: Sequence[int]) -> TypeGuard[Node]:
    return is_node(step, "Transpose") and list(step.attributes["perm"]) == list(perm)
