"""Rules that fuse layers of mobile networks: bottlenecks and squeeze-excite gates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Step, is_call, is_node
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.operators.registry import OPERATORS

__all__ = ["fuse_depthwise_pointwise", "fuse_inverted_bottleneck", "fuse_squeeze_excite"]

_WIDEST = 256  # outputs that one program of the fused kernel can hold


@dataclass(frozen=True)
class _Gate:
    """Squeeze-and-excitation (Hu et al., CVPR 2018) on a feature map.

    Attributes:
        mean: Mean of each channel of the map.
        reduce: Layer from these means to fewer channels.
        excite: Layer from these channels to one factor for each channel of the map.
        product: Product of the map and the factors.
    """

    mean: Node
    reduce: OperatorCall
    excite: OperatorCall
    product: Node

    @property
    def steps(self) -> list[Step]:
        return [self.mean, self.reduce, self.excite, self.product]


def _gate(graph: Graph, name: str) -> _Gate | None:
    """Return the squeeze-excite whose nodes are the only readers of a map, or None."""
    readers = graph.readers(name)
    means = [step for step in readers if is_node(step) and _is_mean(graph, step)]
    if len(readers) != 2 or len(means) != 1:
        return None
    reduce = _plain_pointwise(graph, means[0].outputs[0])
    excite = _plain_pointwise(graph, reduce.outputs[0]) if reduce else None
    product = graph.reader(excite.outputs[0]) if excite else None
    if reduce is None or excite is None:
        return None
    if not is_node(product, "Mul") or name not in product.inputs:
        return None
    return _Gate(means[0], reduce, excite, product)


def _is_mean(graph: Graph, node: Node) -> bool:
    """Return whether a node is the mean of each channel over its pixels, in four dimensions."""
    if node.kind == "GlobalAveragePool":
        return True
    axes = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = node.attributes.get("axes") if axes is None else axes
    wanted = isinstance(axes, list) and sorted(axis % 4 for axis in axes) == [2, 3]
    return node.kind == "ReduceMean" and wanted and bool(node.attributes.get("keepdims", 1))


def _plain_pointwise(graph: Graph, name: str) -> OperatorCall | None:
    """Return the pointwise convolution that is the only reader of a map and reads nothing else."""
    step = graph.reader(name)
    return step if _is_pointwise(step) and set(step.reads) == {"x"} else None


def _is_pointwise(step: Step | None) -> TypeGuard[OperatorCall]:
    """Return whether a step is a pointwise convolution of a map that can still take a gate."""
    return (
        is_call(step, "pointwise")
        and step.maps
        and step.windows is None
        and "gate" not in step.reads
    )


def _is_depthwise(step: Step) -> TypeGuard[OperatorCall]:
    """Return whether a step is a depthwise convolution that does not return channel sums yet."""
    return is_call(step, "depthwise") and len(step.outputs) == 1


def fuse_squeeze_excite(graph: Graph, step: Step) -> Rewrite | None:
    """Fuse a squeeze-excite with the depthwise convolution before it and the layer after it.

    The depthwise convolution also returns the sums that the means are computed from, and the layer
    after the gate multiplies by the factors. The two layers of the gate compute in float32, as the
    sums do, because sums of many pixels can be too large for half precision.
    """
    if not _is_depthwise(step):
        return None
    gate = _gate(graph, step.outputs[0])
    project = graph.reader(gate.product.outputs[0]) if gate else None
    if gate is None or not _is_pointwise(project):
        return None
    y = step.outputs[0]
    images, channels, height, width = graph.shapes[y]
    sums, squeezed, factors = f"{y}/sums", gate.reduce.outputs[0], gate.excite.outputs[0]
    summing = replace(
        step,
        outputs=(y, sums),
        options={**step.options, "sums": True},
        nodes=(*step.nodes, gate.mean.kind),
    )
    mean = {**gate.reduce.weights, "weight": gate.reduce.weights["weight"] / (height * width)}
    reduce = replace(gate.reduce, reads={"x": sums}, weights=mean, maps=False, dtype=torch.float32)
    excite = replace(gate.excite, maps=False, dtype=torch.float32)
    gated = replace(
        project,
        reads={**project.reads, "x": y, "gate": factors},
        nodes=(*project.nodes, gate.product.kind),
    )
    narrow = gate.reduce.weights["bias"].numel()
    shapes = {
        sums: (images, channels), squeezed: (images, narrow), factors: (images, channels)
    }  # fmt: skip
    return Rewrite([step, *gate.steps, project], [summing, reduce, excite, gated], shapes)


def fuse_depthwise_pointwise(graph: Graph, step: Step) -> Rewrite | None:
    """Fuse a depthwise convolution with the pointwise convolution that is its only reader."""
    if not _is_depthwise(step):
        return None
    project = graph.reader(step.outputs[0])
    if not _is_pointwise(project) or project.reads["x"] != step.outputs[0]:
        return None
    if project.weights["bias"].numel() > _WIDEST or "residual_first" in project.options:
        return None
    residual = {name: value for name, value in project.reads.items() if name == "residual"}
    weights = {**step.weights, **_prefixed("project", project)}
    options = {**step.options, "project_activation": project.activation}
    fused = OperatorCall(
        OPERATORS["depthwise_pointwise"],
        {**step.reads, **residual},
        weights,
        options,
        project.outputs,
        (*step.nodes, *project.nodes),
        maps=True,
    )
    return Rewrite([step, project], [fused])


def fuse_inverted_bottleneck(graph: Graph, step: Step) -> Rewrite | None:
    """Fuse an inverted bottleneck (Sandler et al., "MobileNetV2", CVPR 2018) into one call.

    It consists of expansion, depthwise convolution, squeeze-excite if there is one, and projection.
    """
    if not _is_depthwise(step):
        return None
    expand, y = graph.maker(step.reads["x"]), step.outputs[0]
    gate = _gate(graph, y)
    project = graph.reader(gate.product.outputs[0] if gate else y)
    if not _is_expansion(expand, graph, step):
        return None
    if not _is_pointwise(project) or project.activation != "none":
        return None
    weights = {
        **_prefixed("expand", expand),
        **step.weights,
        **_prefixed("project", project),
    }
    nodes = [*expand.nodes, *step.nodes]
    if gate is not None:
        if (gate.reduce.activation, gate.excite.activation) != ("relu", "hard_sigmoid"):
            return None
        weights |= {**_prefixed("reduce", gate.reduce), **_prefixed("excite", gate.excite)}
        nodes += [gate.mean.kind, *gate.reduce.nodes, *gate.excite.nodes, gate.product.kind]
    residual = {name: value for name, value in project.reads.items() if name == "residual"}
    whole = OperatorCall(
        OPERATORS["inverted_bottleneck"],
        {**expand.reads, **residual},
        weights,
        {"stride": step.options["stride"], "activation": step.activation},
        project.outputs,
        (*nodes, *project.nodes),
        maps=True,
    )
    return Rewrite([expand, step, *(gate.steps if gate else []), project], [whole])


def _is_expansion(
    step: Step | None, graph: Graph, depthwise: OperatorCall
) -> TypeGuard[OperatorCall]:
    """Return whether a step is the plain pointwise convolution that feeds a depthwise one.

    Both must have the same activation, and nothing else may read the expanded map.
    """
    return (
        _is_pointwise(step)
        and set(step.reads) == {"x"}
        and step.activation == depthwise.activation
        and graph.reader(step.outputs[0]) is depthwise
    )


def _prefixed(name: str, call: OperatorCall) -> dict[str, Tensor]:
    return {f"{name}_{argument}": value for argument, value in call.weights.items()}
