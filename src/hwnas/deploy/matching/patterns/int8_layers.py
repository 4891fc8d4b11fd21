"""Rules that match layers between int8 values to int8 operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Step, is_call, is_node
from hwnas.deploy.matching.patterns.quantised import (
    QuantisationParameters,
    rounded_sum,
    rounding_after,
    stored_as,
)
from hwnas.deploy.matching.windows import Windows, windows_of
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.primitives.requantisation import folded

__all__ = ["fold_int8_bias", "is_int8_layer", "match_int8_layer"]


@dataclass(frozen=True)
class _Layer:
    """Layer from int8 to int8, of any kind.

    Attributes:
        weight: Weights (C, ...) in int8.
        scale: Scales of the weights, (C,).
        bias: Bias in units of the int32 sums, (C,) in int32.
        x: Name of the input.
        of_x: Quantisation parameters of the input.
        of_y: Quantisation parameters of the output.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor
    x: str
    of_x: QuantisationParameters
    of_y: QuantisationParameters

    def call(self, name: str, packed: Tensor, axis: int, **options: Any) -> OperatorCall:
        """Return a call of an operator with packed weights, whose channels lie along ``axis``."""
        inside, multiplier = folded(
            packed, self.scale, self.bias, axis, self.of_x.scale, self.of_x.zero, self.of_y.scale
        )
        return OperatorCall(
            OPERATORS[name],
            {"x": self.x},
            {"weight": packed.contiguous(), "bias": inside, "multiplier": multiplier},
            {"y_scale": self.of_y.scale, "y_zero": self.of_y.zero, **options},
            (),
            (),
            dtype=torch.int8,
        )


def is_int8_layer(step: Step | None) -> TypeGuard[OperatorCall]:
    """Return whether a step is a call that ends with requantisation."""
    return is_call(step, "int8_pointwise", "int8_depthwise", "int8_convolution")


def match_int8_layer(graph: Graph, step: Step) -> Rewrite | None:
    """Match a convolution or a linear layer from int8 to int8."""
    if not is_node(step, "Conv", "Gemm", "MatMul"):
        return None
    source, after = stored_as(graph, step.inputs[0]), rounding_after(graph, step.outputs[0])
    weights = _weights(graph, step)
    if source is None or after is None or weights is None:
        return None
    bias = _bias(graph, step, source[1].scale * weights[1])
    if bias is None:
        return None
    last, of_y = after
    layer = _Layer(*weights, bias, *source, of_y)
    call = _convolution(step, layer) if step.kind == "Conv" else _linear(layer)
    if call is None:
        return None
    nodes = (step.kind, last.kind)
    return Rewrite([step, last], [replace(call, outputs=last.outputs, nodes=nodes)])


def fold_int8_bias(graph: Graph, step: Step) -> Rewrite | None:
    """Fold the addition of one constant for each output of a linear layer into its bias.

    The file rounds once more between the layer and the addition. The folded call omits this
    rounding, so that its sums with bias are those of the float network.
    """
    if not is_call(step, "int8_pointwise") or step.maps:
        return None
    found = rounded_sum(graph, step)
    bias = None if found is None else graph.tensor(found.other)
    weights, options = step.weights, step.options
    channels = weights["bias"].numel()
    if found is None or bias is None or bias.shape[-1:] != (channels,) or bias.numel() != channels:
        return None
    sums_scale = weights["multiplier"] * options["y_scale"]
    total = weights["bias"] + (bias.flatten() / sums_scale).round().to(torch.int32)
    call = step.and_then(
        found.kinds,
        found.output,
        weights={**weights, "bias": total, "multiplier": sums_scale / found.steps.scale},
        options={**options, "y_scale": found.steps.scale, "y_zero": found.steps.zero},
    )
    return Rewrite([step, *found.nodes], [call])


def _linear(layer: _Layer) -> OperatorCall:
    return layer.call("int8_pointwise", layer.weight, 0)


def _convolution(conv: Node, layer: _Layer) -> OperatorCall | None:
    """Return the call for a depthwise or an ungrouped convolution, or None for any other.

    Where no operator takes the windows of an ungrouped convolution, PyTorch gathers them.
    """
    windows = windows_of(conv, layer.weight)
    if windows is None:
        return None
    # Operators on maps take windows with an odd side, padded by half of it.
    even = windows.size % 2 == 0 or windows.padding != windows.size // 2 or windows.stride > 2
    options = {"x_zero": layer.of_x.zero, "stride": windows.stride}
    if (group := conv.attributes.get("group", 1)) > 1:
        if even or layer.weight.shape[1] > 1 or group != len(layer.weight):
            return None
        packed = layer.weight[:, 0].permute(1, 2, 0)
        return replace(layer.call("int8_depthwise", packed, 2, **options), maps=True)
    packed = layer.weight.permute(0, 2, 3, 1)
    if even or windows == Windows(1, 1):
        gathered = replace(windows, value=layer.of_x.zero) if even else None
        call = layer.call("int8_pointwise", packed.flatten(1), 0)
        return replace(call, maps=True, windows=gathered)
    return replace(layer.call("int8_convolution", packed, 0, **options), maps=True)


def _weights(graph: Graph, layer: Node) -> tuple[Tensor, Tensor] | None:
    """Return symmetric int8 weights, outputs first, and their scales; None if there are none."""
    maker = graph.maker(layer.inputs[1])
    if not is_node(maker, "DequantizeLinear") or not _is_plain(layer):
        return None
    steps, scale = graph.tensor(maker.inputs[0]), graph.constants.get(maker.inputs[1])
    zero = graph.constants.get(maker.inputs[2]) if len(maker.inputs) > 2 else 0
    if steps is None or steps.dtype != torch.int8 or bool(torch.as_tensor(zero).any()):
        return None
    if steps.dim() != (4 if layer.kind == "Conv" else 2):
        return None
    last = layer.kind == "MatMul" or (layer.kind == "Gemm" and not layer.attributes.get("transB"))
    scale = torch.as_tensor(scale, dtype=torch.float32).flatten()
    if scale.numel() > 1 and maker.attributes.get("axis", 1) % steps.dim() != int(last):
        return None
    steps = steps.T.contiguous() if last else steps
    return steps, scale.expand(len(steps)).contiguous()


def _is_plain(layer: Node) -> bool:
    """Return whether a layer is a convolution, or only multiplies its input by its weights."""
    attributes = layer.attributes
    factors = {attributes.get(key, 1.0) for key in ("alpha", "beta")}
    return layer.kind == "Conv" or (not attributes.get("transA") and factors == {1.0})


def _bias(graph: Graph, layer: Node, sums_scale: Tensor) -> Tensor | None:
    """Return the bias in units of the int32 sums, (C,) in int32; None if it is not a constant."""
    if len(layer.inputs) < 3 or not layer.inputs[2]:
        return torch.zeros_like(sums_scale, dtype=torch.int32)
    name = layer.inputs[2]
    value, maker = graph.tensor(name), graph.maker(name)
    if is_node(maker, "DequantizeLinear") and maker.inputs[0] in graph.constants:
        value = maker.run([graph.constants[each] for each in maker.inputs])[name]
    if value is None or value.numel() != sums_scale.numel():
        return None
    return (value.flatten().double() / sums_scale.double()).round().to(torch.int32)
