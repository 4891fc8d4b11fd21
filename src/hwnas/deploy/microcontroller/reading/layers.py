"""Reading of layers with weights, and of products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.axes import IntegerMatrixProduct
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    LayerWeights,
)
from hwnas.deploy.microcontroller.fixed_point import FixedPoint
from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.reading.tensors import OnnxTensors
from hwnas.deploy.microcontroller.reading.windows import map_window
from hwnas.deploy.microcontroller.transposed import IntegerTransposedConvolution
from hwnas.deploy.microcontroller.values import OnnxValue, QuantisedConstant, map_order
from hwnas.deploy.onnx.graph import attributes_of

__all__ = ["LAYERS"]

_BITS_OF_BIAS = 29


def _layer(
    tensors: OnnxTensors,
    node: Any,
    value: OnnxValue,
    kernel: NDArray[np.int64],
    scale: NDArray[np.float64],
) -> LayerWeights:
    """Return the numbers of a layer with weights.

    A bias that does not fit into 30 bits, beside weights near zero, gets coarser steps.

    Args:
        tensors: Tensors of the graph.
        node: Node of the layer.
        value: Its input.
        kernel: Weights as integers, with the M outputs in front.
        scale: Real numbers that their steps stand for, (1,) or (M,).
    """
    before, after = tensors.build.grid(value), tensors.grid(node.output[0])
    outputs = len(kernel)
    steps = before.scale * np.broadcast_to(scale.reshape(-1), (outputs,))
    given = tensors.real(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    bias = np.zeros(outputs) if given is None else np.broadcast_to(given.ravel(), (outputs,))
    coarser = np.maximum(steps, np.abs(bias) / 2**_BITS_OF_BIAS)
    shares = (steps / coarser).reshape(-1, *[1] * (kernel.ndim - 1))
    return LayerWeights(
        np.rint(kernel * shares).astype(np.int8),
        np.rint(bias / coarser).astype(np.int32),
        FixedPoint(coarser / after.scale),
        (before.zero, after.zero),
    )


def _map(tensors: OnnxTensors, node: Any, attributes: Mapping[str, Any]) -> OnnxValue:
    """Return the input of a convolution, stored with its channels last."""
    value = tensors.value(node.input[0])
    if len(value.shape) != 4 or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise tensors.build.fault("is a convolution of another kind than two-dimensional")
    return tensors.build.in_order(value, map_order())


def _convolution(tensors: OnnxTensors, node: Any) -> OnnxValue:
    attributes = attributes_of(node)
    value = _map(tensors, node, attributes)
    given = tensors.weights(node.input[1])
    layer = _layer(tensors, node, value, given.values.transpose(0, 2, 3, 1), given.scale)
    outputs, *kernel, width = layer.values.shape
    groups = int(attributes.get("group", 1))
    window, is_point = map_window(attributes, value.shape[2:], kernel)
    operator: IntegerOperator
    if groups == 1 and is_point:
        matrix = replace(layer, values=layer.values.reshape(outputs, width))
        operator = IntegerLinear(matrix, math.prod(value.shape[2:]))
    elif width == 1 and groups == outputs:
        maps = replace(layer, values=layer.values[..., 0].transpose(1, 2, 0))
        operator = IntegerDepthwise(maps, window)
    else:
        operator = IntegerConvolution(layer, window, groups)
    shape = 1, outputs, *window.output_size
    return tensors.build.add(operator, [value], shape, map_order(), tensors.grid(node.output[0]))


def _transposed_convolution(tensors: OnnxTensors, node: Any) -> OnnxValue:
    attributes = attributes_of(node)
    value = _map(tensors, node, attributes)
    given = tensors.weights(node.input[1])
    dilated = any(each != 1 for each in attributes.get("dilations", ()))
    if attributes.get("group", 1) != 1 or dilated or "output_shape" in attributes:
        raise tensors.build.fault("is a transposed convolution with groups or dilation")
    layer = _layer(tensors, node, value, given.values.transpose(1, 2, 3, 0), given.scale)
    size, kernel = value.shape[2:], layer.values.shape[1:3]
    strides, pads = attributes.get("strides", (1, 1)), attributes.get("pads", (0, 0, 0, 0))
    more = attributes.get("output_padding", (0, 0))
    made = tuple(
        (size[i] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + 2] + more[i] for i in range(2)
    )
    pairs = size, made, strides, pads[:2]
    sizes = ((int(each[0]), int(each[1])) for each in pairs)
    operator = IntegerTransposedConvolution(layer, *sizes)
    shape = 1, len(layer.bias), *operator.output_size
    return tensors.build.add(operator, [value], shape, map_order(), tensors.grid(node.output[0]))


def _linear(
    tensors: OnnxTensors, node: Any, value: OnnxValue, weights: QuantisedConstant
) -> OnnxValue:
    """Return a linear layer over the last axis, given weights (K, M)."""
    inner, outputs = weights.values.shape
    if weights.scale.size > 1 and weights.scale.shape != (1, outputs):
        raise tensors.build.fault("has scales for its inputs; they must be for its outputs")
    if not value.last_is_last:
        value = tensors.build.in_order(value)
    layer = _layer(tensors, node, value, weights.values.T, weights.scale)
    operator = IntegerLinear(layer, math.prod(value.shape) // inner)
    shape = *value.shape[:-1], outputs
    return tensors.build.add(operator, [value], shape, value.order, tensors.grid(node.output[0]))


def _gemm(tensors: OnnxTensors, node: Any) -> OnnxValue:
    attributes = attributes_of(node)
    plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1
    if attributes.get("transA", 0) or not plain:
        raise tensors.build.fault("is a Gemm with factors or a transposed input")
    weights = tensors.weights(node.input[1])
    if attributes.get("transB", 0):
        scale = weights.scale.T if weights.scale.ndim == 2 else weights.scale
        weights = QuantisedConstant(weights.values.T, scale)
    return _linear(tensors, node, tensors.value(node.input[0]), weights)


def _matmul(tensors: OnnxTensors, node: Any) -> OnnxValue:
    if tensors.constant(node.input[1]) is not None:
        weights = tensors.weights(node.input[1])
        if weights.values.ndim == 2:
            return _linear(tensors, node, tensors.value(node.input[0]), weights)
    if any(tensors.constant(name) is not None for name in node.input):
        raise tensors.build.fault("multiplies by a constant that is no matrix on the right")
    return _matrix_product(tensors, node, [tensors.value(name) for name in node.input])


def _matrix_product(tensors: OnnxTensors, node: Any, given: Sequence[OnnxValue]) -> OnnxValue:
    left, right = map(tensors.build.in_order, given)
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if left.shape[:-2] != right.shape[:-2] or right.shape[-2] != inner:
        raise tensors.build.fault(f"multiplies matrices of shapes {left.shape} and {right.shape}")
    grids = tensors.build.grid(left), tensors.build.grid(right)
    after = tensors.grid(node.output[0])
    operator = IntegerMatrixProduct(
        (math.prod(left.shape[:-2]), rows, inner, columns),
        FixedPoint(np.array(grids[0].scale * grids[1].scale / after.scale)),
        (grids[0].zero, grids[1].zero, after.zero),
    )
    shape = *left.shape[:-1], columns
    return tensors.build.add(operator, [left, right], shape, left.order, after)


LAYERS: Mapping[str, Callable[[OnnxTensors, Any], OnnxValue]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
"""Readers of nodes by operator."""
