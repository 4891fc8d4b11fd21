"""Rules for linear layers of transformers: fold layer normalisation, and join parallel layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import torch

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Step, is_call, is_node
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.operators.norm_linear import fold_norm, norm_linear

__all__ = ["fold_norms", "join_linear"]


def fold_norms(graph: Graph, step: Step) -> Rewrite | str | None:
    """Fold a layer normalisation into each of the linear layers that read it."""
    if not is_node(step, "LayerNormalization"):
        return None
    name, (x, scale_name) = step.outputs[0], step.inputs[:2]
    scale, dimensions = graph.tensor(scale_name), len(graph.shapes[x])
    if scale is None or step.attributes.get("axis", -1) % dimensions != dimensions - 1:
        return "it does not normalise only the last dimension"
    layers = [each for each in graph.readers(name) if _is_linear(each)]
    others = [value for each in layers for key, value in each.reads.items() if key != "x"]
    if not layers or len(layers) != len(graph.readers(name)) or name in others:
        return "not only linear layers read it"
    shift = graph.tensor(step.inputs[2]) if len(step.inputs) > 2 else None
    shift = torch.zeros_like(scale) if shift is None else shift
    epsilon = step.attributes.get("epsilon", 1e-5)
    new = []
    for layer in layers:
        weight, bias = fold_norm(scale.float(), shift.float(), *layer.weights.values())
        new.append(
            replace(
                layer,
                operator=norm_linear,
                reads={**layer.reads, "x": x},
                weights={"weight": weight, "bias": bias},
                options={**layer.options, "epsilon": epsilon},
                nodes=(step.kind, *layer.nodes),
            )
        )
    return Rewrite([step, *layers], new)


def _is_linear(step: Step) -> TypeGuard[OperatorCall]:
    return is_call(step, "pointwise") and not step.maps and "residual_first" not in step.options


def join_linear(graph: Graph, step: Step) -> Rewrite | None:
    """Join linear layers with the same input into one layer, whose output is split afterwards.

    Layers are joined only where a reshape follows each of them, as in attention. Any other reader
    would have to copy its part of the output.
    """
    if not _is_joinable(step):
        return None
    together = [
        other
        for other in graph.readers(step.inputs[0])
        if _is_joinable(other)
        and _are_alike(step, other)
        and is_node(graph.reader(other.outputs[0]), "Reshape")
    ]
    if len(together) < 2 or together[0] is not step:
        return None
    sizes = [other.weights["bias"].numel() for other in together]
    weights = {
        name: torch.cat([other.weights[name] for other in together], -1)
        for name in ("weight", "bias")
    }
    joined = f"{step.outputs[0]}/joined"
    names = tuple(other.outputs[0] for other in together)
    nodes = tuple(kind for other in together for kind in other.nodes)
    layer = replace(step, weights=weights, outputs=(joined,), nodes=nodes)
    split = Node("Split", (joined, f"{joined}/sizes"), names, {"axis": -1})
    shape = (*graph.shapes[step.outputs[0]][:-1], sum(sizes))
    return Rewrite(together, [layer, split], {joined: shape}, {f"{joined}/sizes": sizes})


def _is_joinable(step: Step) -> TypeGuard[OperatorCall]:
    linear = is_call(step, "norm_linear") or _is_linear(step)
    return linear and isinstance(step, OperatorCall) and set(step.reads) == {"x"}


def _are_alike(one: OperatorCall, other: OperatorCall) -> bool:
    return one.operator is other.operator and dict(one.options) == dict(other.options)
