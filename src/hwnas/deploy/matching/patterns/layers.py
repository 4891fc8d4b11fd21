"""Rules for convolutions and linear layers: match them to operators, and fold what follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Step, is_call, is_node
from hwnas.deploy.matching.patterns.activations import activation_of
from hwnas.deploy.matching.windows import Windows, windows_of
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.operators.registry import OPERATORS

__all__ = ["fold_activation", "fold_bias", "fold_residual", "match_convolution", "match_linear"]

_WITH_ACTIVATION = ("convolution", "depthwise", "norm_linear", "pointwise")
_RESIDUAL_FIRST = ("convolution", "pointwise")
_WITH_RESIDUAL = ("convolution", "depthwise_pointwise", "norm_linear", "pointwise")


def match_convolution(graph: Graph, step: Step) -> Rewrite | str | None:
    """Match a convolution to the operator for its kind, or return the reason why none fits."""
    if is_node(step, "ConvTranspose"):
        return "operators do not support transposed convolutions; cuDNN computes it"
    if not is_node(step, "Conv"):
        return None
    weight = graph.tensor(step.inputs[1])
    if weight is None or weight.dim() != 4:
        return "its weight is not a constant with four dimensions"
    outer, inner, size, _ = weight.shape
    stride = step.attributes.get("strides", [1, 1])[0]
    group = step.attributes.get("group", 1)
    reason = _odd_window(step, weight)
    patches = _patches(step, weight) if reason is not None else None
    if patches is None and reason is not None:
        return reason
    if patches is not None:
        name, packed = "pointwise", weight.permute(2, 3, 1, 0).flatten(0, 2)
    elif group == outer and inner == 1:
        name, packed = "depthwise", weight[:, 0].permute(1, 2, 0)
    elif group > 1:
        return (
            f"{group} groups of {inner} channels: operators support one group or groups of one "
            "channel; cuDNN computes it"
        )
    elif size == stride == 1:
        name, packed = "pointwise", weight[:, :, 0, 0].T
    else:
        name, packed = "convolution", weight.permute(2, 3, 1, 0)
    if _has_moving_bias(graph, step):
        return "its bias is not a constant"
    bias = graph.tensor(step.inputs[2]) if len(step.inputs) > 2 else None
    options = {} if name == "pointwise" else {"stride": stride}
    layer = _layer(step, name, packed, bias, options, maps=True)
    return Rewrite([step], [replace(layer, windows=patches)])


def _patches(node: Node, weight: Tensor) -> Windows | None:
    """Return a convolution's windows if they overlap by at most half.

    The patch embedding of a transformer is an example.
    """
    windows = windows_of(node, weight) if node.attributes.get("group", 1) == 1 else None
    if windows is None or windows.stride == 1 or windows.size > 2 * windows.stride:
        return None
    return windows


def _odd_window(node: Node, weight: Tensor) -> str | None:
    """Return the reason why no operator takes a convolution's window or padding, or None."""
    attributes, (height, width) = node.attributes, weight.shape[2:]
    strides = attributes.get("strides", [1, 1])
    if height != width or height % 2 == 0:
        return f"its window is {height} x {width}, not square with an odd side"
    if set(attributes.get("dilations", [1])) != {1}:
        return "it is dilated"
    if strides not in ([1, 1], [2, 2]):
        return f"its strides are {strides}, not 1 or 2 along both axes"
    pads = attributes.get("pads", [0, 0, 0, 0])
    if pads != [height // 2] * 4 or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return f"its padding is {pads}, not half of its window"
    return None


def match_linear(graph: Graph, step: Step) -> Rewrite | str | None:
    """Match a product with a constant matrix, or return the reason why no operator fits."""
    if not is_node(step, "Gemm", "MatMul"):
        return None
    weight, attributes = graph.tensor(step.inputs[1]), step.attributes
    if weight is None or weight.dim() != 2:
        return None if step.kind == "MatMul" else "its weight is not a constant matrix"
    if attributes.get("transA") or {attributes.get(key, 1.0) for key in ("alpha", "beta")} != {1.0}:
        return "its input is transposed, or alpha or beta is not 1"
    if _has_moving_bias(graph, step):
        return "its bias is not a constant"
    bias = graph.tensor(step.inputs[2]) if len(step.inputs) > 2 else None
    packed = weight.T if attributes.get("transB") else weight
    if bias is not None and bias.numel() != packed.shape[1]:
        return "its bias is not one value for each output"
    return Rewrite([step], [_layer(step, "pointwise", packed, bias, {}, maps=False)])


def _has_moving_bias(graph: Graph, node: Node) -> bool:
    return any(name and graph.tensor(name) is None for name in node.inputs[2:])


def _layer(
    node: Node,
    name: str,
    weight: Tensor,
    bias: Tensor | None,
    options: Mapping[str, Any],
    maps: bool,
) -> OperatorCall:
    channels = weight.shape[-1]
    bias = torch.zeros(channels) if bias is None else bias.float().reshape(channels)
    weights = {"weight": weight.float().contiguous(), "bias": bias}
    reads = {"x": node.inputs[0]}
    return OperatorCall(OPERATORS[name], reads, weights, options, node.outputs, (node.kind,), maps)


def fold_bias(graph: Graph, step: Step) -> Rewrite | None:
    """Fold the addition of one constant for each output channel into a linear layer."""
    if not is_call(step, "pointwise") or step.maps:
        return None
    added = graph.reader(step.outputs[0])
    if not is_node(added, "Add"):
        return None
    [bias] = [graph.tensor(name) for name in added.inputs if name != step.outputs[0]] or [None]
    channels = step.weights["bias"].numel()
    if bias is None or bias.numel() != channels or bias.shape[-1] != channels:
        return None
    if graph.shapes[added.outputs[0]] != graph.shapes[step.outputs[0]]:
        return None
    weights = {**step.weights, "bias": step.weights["bias"] + bias.float().flatten()}
    folded = step.and_then(["Add"], added.outputs[0], weights=weights)
    return Rewrite([step, added], [folded])


def fold_activation(graph: Graph, step: Step) -> Rewrite | None:
    """Fold the activation after a layer, or after its sum with a residual, into the layer."""
    if not is_call(step, *_WITH_ACTIVATION) or step.activation != "none":
        return None
    summed = "residual" in step.reads
    if summed and not is_call(step, *_RESIDUAL_FIRST):
        return None
    after = graph.reader(step.outputs[0])
    name = activation_of(graph, after)
    if name is None or not is_node(after):
        return None
    options = {**step.options, "activation": name}
    options |= {"residual_first": True} if summed else {}
    return Rewrite([step, after], [step.and_then([after.kind], after.outputs[0], options=options)])


def fold_residual(graph: Graph, step: Step) -> Rewrite | None:
    """Fold the addition of a residual of the same shape into the layer before it."""
    if not is_call(step, *_WITH_RESIDUAL) or "residual" in step.reads:
        return None
    output = step.outputs[0]
    added = graph.reader(output)
    if not is_node(added, "Add"):
        return None
    others = [name for name in added.inputs if name != output]
    if len(others) != 1 or graph.shapes.get(others[0]) != graph.shapes[output]:
        return None
    if others[0] in graph.constants or graph.shapes[added.outputs[0]] != graph.shapes[output]:
        return None
    reads = {**step.reads, "residual": others[0]}
    return Rewrite([step, added], [step.and_then(["Add"], added.outputs[0], reads=reads)])
