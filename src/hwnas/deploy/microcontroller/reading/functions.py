"""Reading of functions of single values, and of sums and products of two tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.elementwise import IntegerAddition, IntegerProduct
from hwnas.deploy.microcontroller.fixed_point import FixedPoint, clipped, fixed_point
from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.reading.tensors import OnnxTensors
from hwnas.deploy.microcontroller.values import EVERY_INT8, IntegerGrid, OnnxValue, map_order

__all__ = ["FUNCTIONS"]

Floats = NDArray[np.float32]
_BITS_OF_ADDITION = 21
_UNARY = (
    "Abs", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
    "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh",
)  # fmt: skip


def _unary(tensors: OnnxTensors, node: Any) -> OnnxValue:
    value, grid = tensors.value(node.input[0]), tensors.grid(node.output[0])
    real = tensors.build.grid(value).real(EVERY_INT8)
    return tensors.build.function(value, grid, grid.nearest(_computed(tensors, node, real)))


def _computed(tensors: OnnxTensors, node: Any, inputs: Floats) -> Floats:
    """Return what ONNX Runtime computes for an operator of one tensor and constants."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    constants = {name: tensors.real(name) for name in node.input[1:] if name}
    if any(each is None for each in constants.values()):
        raise tensors.build.fault("depends on more than one tensor")
    arrays = [
        numpy_helper.from_array(np.asarray(each, np.float32), name)
        for name, each in constants.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(inputs)])
        for name in (node.input[0], node.output[0])
    ]
    graph = helper.make_graph([node], "one", [ends[0]], [ends[1]], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: Floats = session.run(None, {node.input[0]: inputs})[0]
    return found


def _binary(tensors: OnnxTensors, node: Any) -> OnnxValue:
    names = list(node.input)
    grid = tensors.grid(node.output[0])
    constants = [tensors.real(name) for name in names]
    if all(each is not None for each in constants):
        raise tensors.build.fault("has constants alone")
    if constants[0] is not None:
        names, constants = names[::-1], constants[::-1]
    first, constant = tensors.value(names[0]), constants[1]
    if constant is not None and constant.size == 1:
        real = tensors.build.grid(first).real(EVERY_INT8)
        other = np.float32(constant.item())
        found = real + other if node.op_type == "Add" else real * other
        return tensors.build.function(first, grid, grid.nearest(found))
    if constant is not None:
        first = _channels_last(tensors, first, constant.shape)
        second = _constant_value(tensors, names[1], first)
    else:
        second = tensors.value(names[1])
        if (of_one := _function_of_one(tensors, node, first, second, grid)) is not None:
            return of_one
        if math.prod(second.shape) > math.prod(first.shape):
            first, second = second, first
        second = tensors.build.in_order(second.of_rank(len(first.shape)), first.order)
    return _combined(tensors, node, first, second, grid)


def _function_of_one(
    tensors: OnnxTensors, node: Any, first: OnnxValue, second: OnnxValue, grid: IntegerGrid
) -> OnnxValue | None:
    """Return a table if both tensors are functions of the same one, such as x * sigmoid(x)."""
    (base, left), (other, right) = map(tensors.build.as_function, (first, second))
    if base != other or not first.same_layout(second):
        return None
    x, y = tensors.build.grid(first).real(left), tensors.build.grid(second).real(right)
    outputs = grid.nearest(x + y if node.op_type == "Add" else x * y)
    return tensors.build.function(OnnxValue(base, first.shape, first.order), grid, outputs)


def _channels_last(tensors: OnnxTensors, value: OnnxValue, constant: tuple[int, ...]) -> OnnxValue:
    """Return a map with its channels last if a constant has one number for each channel."""
    if len(value.shape) != 4 or constant[-3:] != (value.shape[1], 1, 1):
        return value
    return tensors.build.in_order(value, map_order())


def _constant_value(tensors: OnnxTensors, name: str, beside: OnnxValue) -> OnnxValue:
    """Return a constant as a tensor that is stored as another one that it is combined with."""
    constant = tensors.constant(name)
    if constant is None or constant.scale.size != 1:
        raise tensors.build.fault("adds or multiplies by a constant without one scale")
    low = int(constant.values.min())
    zero = -128 - low if low < -128 or constant.values.max() > 127 else 0
    shape = (1,) * (len(beside.shape) - constant.values.ndim) + constant.values.shape
    stored = clipped(constant.values.reshape(shape).transpose(beside.order) + zero)
    tensor = tensors.build.constant(stored, IntegerGrid(constant.scale.item(), zero))
    return OnnxValue(tensor, shape, beside.order)


def _combined(
    tensors: OnnxTensors, node: Any, first: OnnxValue, second: OnnxValue, grid: IntegerGrid
) -> OnnxValue:
    whole, part = first.stored, second.stored
    trailing = tuple(itertools.dropwhile(lambda size: size == 1, part))
    if trailing != whole[len(whole) - len(trailing) :]:
        raise tensors.build.fault(f"combines tensors of shapes {first.shape} and {second.shape}")
    grids = [tensors.build.grid(first), tensors.build.grid(second)]
    zeros = grids[0].zero, grids[1].zero, grid.zero
    sizes = math.prod(whole), math.prod(trailing)
    operator: IntegerOperator
    if node.op_type == "Add":
        ratios = [each.scale / grid.scale for each in grids]
        _, shift = fixed_point(max(ratios), _BITS_OF_ADDITION)
        multipliers = round(ratios[0] * 2**shift), round(ratios[1] * 2**shift)
        operator = IntegerAddition(multipliers, shift, zeros, *sizes)
    else:
        ratio = FixedPoint(np.array(grids[0].scale * grids[1].scale / grid.scale))
        operator = IntegerProduct(ratio, zeros, *sizes)
    return tensors.build.add(operator, [first, second], first.shape, first.order, grid)


FUNCTIONS: Mapping[str, Callable[[OnnxTensors, Any], OnnxValue]] = {
    "Add": _binary,
    "Mul": _binary,
    **dict.fromkeys(_UNARY, _unary),
}
"""Readers of nodes by operator."""
