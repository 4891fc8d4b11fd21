"""Reading of softmax and of normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hwnas.deploy.microcontroller.axes import IntegerSoftmax
from hwnas.deploy.microcontroller.normalisation import IntegerGroupNorm, IntegerLayerNorm
from hwnas.deploy.microcontroller.reading.tensors import OnnxTensors
from hwnas.deploy.microcontroller.values import OnnxValue
from hwnas.deploy.onnx.graph import attributes_of

__all__ = ["NORMALISATIONS"]


def _last_axis(tensors: OnnxTensors, node: Any) -> tuple[OnnxValue, int, int]:
    """Return the input, stored with its last axis last, and the rows and columns of it."""
    value = tensors.value(node.input[0])
    axis = attributes_of(node).get("axis", -1)
    if axis % len(value.shape) != len(value.shape) - 1:
        raise tensors.build.fault(f"works over axis {axis}; it must be the last one")
    if not value.last_is_last:
        value = tensors.build.in_order(value)
    return value, math.prod(value.shape[:-1]), value.shape[-1]


def _softmax(tensors: OnnxTensors, node: Any) -> OnnxValue:
    value, rows, columns = _last_axis(tensors, node)
    grid = tensors.grid(node.output[0])
    step = tensors.build.grid(value).scale
    operator = IntegerSoftmax.of(step, grid.scale, grid.zero, rows, columns)
    return tensors.build.add(operator, [value], value.shape, value.order, grid)


def _layer_norm(tensors: OnnxTensors, node: Any) -> OnnxValue:
    value, rows, width = _last_axis(tensors, node)
    grid, step = tensors.grid(node.output[0]), tensors.build.grid(value).scale
    if width > IntegerLayerNorm.WIDEST:
        raise tensors.build.fault(
            f"normalises {width} values; at most {IntegerLayerNorm.WIDEST} fit"
        )
    gamma = tensors.real(node.input[1])
    beta = tensors.real(node.input[2]) if len(node.input) > 2 else None
    if gamma is None:
        raise tensors.build.fault("has factors that are not constant")
    operator = IntegerLayerNorm.of(
        gamma.reshape(-1) / grid.scale,
        (np.zeros(width) if beta is None else beta.reshape(-1)) / grid.scale,
        _epsilon(node, width, step, IntegerLayerNorm.WIDEST),
        grid.zero,
        rows,
    )
    return tensors.build.add(operator, [value], value.shape, value.order, grid)


def _epsilon(node: Any, width: int, step: float, widest: int) -> int:
    """Return the epsilon of a normalisation of some values, in squared steps times width squared.

    It is at most four times the largest possible variance of as many values as given last.
    """
    epsilon: float = attributes_of(node).get("epsilon", 1e-5) * width**2 / step**2
    return min(max(1, round(epsilon)), widest**2 * 2**16)


def _group_norm(tensors: OnnxTensors, node: Any) -> OnnxValue:
    """Return a normalisation of each group (N, G, ...), as group normalisation is exported."""
    value = tensors.build.in_order(tensors.value(node.input[0]))
    grid, step = tensors.grid(node.output[0]), tensors.build.grid(value).scale
    gamma, beta = (tensors.real(name) for name in node.input[1:3])
    groups, width = value.shape[1], math.prod(value.shape[2:])
    if width > IntegerGroupNorm.WIDEST:
        raise tensors.build.fault(
            f"normalises {width} values; at most {IntegerGroupNorm.WIDEST} fit"
        )
    if gamma is None or beta is None or gamma.size != groups:
        raise tensors.build.fault("has factors that are not constant")
    operator = IntegerGroupNorm.of(
        gamma.reshape(-1) / grid.scale,
        beta.reshape(-1) / grid.scale,
        _epsilon(node, width, step, width),
        grid.zero,
        width,
    )
    return tensors.build.add(operator, [value], value.shape, value.order, grid)


NORMALISATIONS: Mapping[str, Callable[[OnnxTensors, Any], OnnxValue]] = {
    "InstanceNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "Softmax": _softmax,
}
"""Readers of nodes by operator."""
