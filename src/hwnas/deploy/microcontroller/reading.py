"""Reading of a quantised ONNX file as an integer network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.axes import (
    IntegerConcatenation,
    IntegerLayerNorm,
    IntegerMatrixProduct,
    IntegerReduction,
    IntegerSoftmax,
)
from hwnas.deploy.microcontroller.building import IntegerNetworkBuilder
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    IntegerPooling,
    LayerWeights,
    MapWindow,
)
from hwnas.deploy.microcontroller.elementwise import IntegerAddition, IntegerProduct, PixelTable
from hwnas.deploy.microcontroller.fixed_point import FixedPoint, clipped, fixed_point
from hwnas.deploy.microcontroller.movements import MOVEMENTS, attributes_of
from hwnas.deploy.microcontroller.network import IntegerNetwork
from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.values import (
    EVERY_INT8,
    IntegerGrid,
    OnnxValue,
    QuantisedConstant,
    map_order,
    stored_index,
)
from hwnas.deploy.onnx.graph import read_whole_model
from hwnas.deploy.onnx.node_names import block_of, in_words
from hwnas.errors import UnsupportedOperator

if TYPE_CHECKING:
    from hwnas.deploy.io import Preprocessing

__all__ = ["read_integer_network"]

Floats = NDArray[np.float32]
_BITS_OF_ADDITION, _BITS_OF_BIAS = 21, 29
_UNARY = (
    "Abs", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
    "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh",
)  # fmt: skip
_WIDEST_NORM = 1024
_LARGEST_EPSILON = 2**36


def read_integer_network(path: Path, preprocessing: Preprocessing) -> IntegerNetwork:
    """Read a network that `hwnas.deploy.quantization.quantize.quantize_int8` wrote.

    Args:
        path: ONNX file in QDQ format, with all operators quantised to eight bits.
        preprocessing: Conversion of pixels to the network's input.

    Raises:
        ArtifactError: The file is damaged, or a layer is not quantised.
        UnsupportedOperator: There is no integer version of an operator.
    """
    model = read_whole_model(path)
    return _Reader(model.graph, path, preprocessing).network()


class _Reader:
    def __init__(self, graph: Any, path: Path, preprocessing: Preprocessing) -> None:
        from onnx import numpy_helper

        self._graph, self._path, self._preprocessing = graph, path, preprocessing
        self._arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self._constants: dict[str, QuantisedConstant] = {}
        self._values: dict[str, OnnxValue] = {}
        self._grids: dict[str, IntegerGrid] = {}
        how = preprocessing
        self._build = IntegerNetworkBuilder(path, (how.height, how.width, how.channels))

    def network(self) -> IntegerNetwork:
        self._check_operators()
        for node in self._graph.node:
            if node.op_type == "QuantizeLinear":
                self._grids.setdefault(node.input[0], self._grid_of(node))
        [pixels] = [each.name for each in self._graph.input if each.name not in self._arrays]
        for node in self._graph.node:
            self._build.layer = node.name
            if node.op_type == "DequantizeLinear":
                self._dequantised(node)
            elif node.op_type == "QuantizeLinear":
                if node.input[0] == pixels:
                    self._values[node.output[0]] = self._from_pixels(self._grid_of(node))
                else:
                    value = self._value(node.input[0])
                    self._values[node.output[0]] = self._build.on_grid(value, self._grid_of(node))
            else:
                self._values[node.output[0]] = _READERS[node.op_type](self, node)
        [output] = self._graph.output
        last = self._build.in_order(self._value(output.name))
        return self._build.network(last)

    def _check_operators(self) -> None:
        known = {"QuantizeLinear", "DequantizeLinear", *_READERS}
        odd = [(n.op_type, block_of(n.name)) for n in self._graph.node if n.op_type not in known]
        if odd:
            operators = list(dict.fromkeys(odd))
            raise UnsupportedOperator(
                f"{self._path}: there is no integer version of {in_words(operators)}; build that "
                "block from other operators, or choose another format",
                operators,
            )

    # Values and constants

    def _grid_of(self, node: Any) -> IntegerGrid:
        scale, zero = (self._arrays.get(name) for name in node.input[1:3])
        eight_bits = zero is not None and zero.dtype in (np.uint8, np.int8)
        if scale is None or scale.size != 1 or zero is None or not eight_bits:
            self._build.layer = node.name
            raise self._build.fault("is not quantised to eight bits with one scale")
        return IntegerGrid(float(scale), int(zero) - (128 if zero.dtype == np.uint8 else 0))

    def _dequantised(self, node: Any) -> None:
        source, target = node.input[0], node.output[0]
        if source not in self._arrays:
            self._values[target] = self._value(source)
            return
        values, scale = self._arrays[source].astype(np.int64), self._arrays[node.input[1]]
        zero = self._arrays[node.input[2]] if len(node.input) > 2 else np.zeros(1)
        if scale.size > 1:
            axis = attributes_of(node).get("axis", 1)
            shape = [-1 if each == axis else 1 for each in range(values.ndim)]
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        self._constants[target] = QuantisedConstant(
            values - zero.astype(np.int64), scale.astype(np.float64)
        )

    def _value(self, name: str) -> OnnxValue:
        if name not in self._values:
            raise self._build.fault(
                "stays in floating point; a microcontroller needs all layers in int8"
            )
        return self._values[name]

    def _real(self, name: str) -> NDArray[np.float64] | None:
        """Return a constant as real numbers, or None if the name is not one."""
        if name in self._constants:
            return self._constants[name].real
        return self._arrays[name].astype(np.float64) if name in self._arrays else None

    def _grid(self, name: str) -> IntegerGrid:
        """Return the grid to which an operator's output is rounded."""
        if name not in self._grids:
            raise self._build.fault("gives outputs in floating point; all must be int8")
        return self._grids[name]

    # Steps

    def _from_pixels(self, grid: IntegerGrid) -> OnnxValue:
        how = self._preprocessing
        every = np.arange(256, dtype=np.uint8)[:, None, None, None]
        pixels = np.broadcast_to(every, (256, 1, 1, how.channels))
        real = how.at(1, 1)(np.ascontiguousarray(pixels)).numpy()[:, :, 0, 0]
        table = PixelTable(grid.nearest(real.T), math.prod(how.input_shape))
        return self._build.from_pixels(table, (1, *how.input_shape), map_order(), grid)

    # Layers with weights

    def _weights(self, name: str) -> QuantisedConstant:
        weights = self._constants.get(name)
        if weights is None or (clipped(weights.values) != weights.values).any():
            raise self._build.fault("is not quantised: its weights are not eight-bit constants")
        return weights

    def _layer(
        self, node: Any, value: OnnxValue, kernel: NDArray[np.int64], scale: NDArray[np.float64]
    ) -> LayerWeights:
        """Return the numbers of a layer with weights.

        A bias that does not fit into 30 bits, beside weights near zero, gets coarser steps.

        Args:
            node: Node of the layer.
            value: Its input.
            kernel: Weights as integers, with the M outputs in front.
            scale: Real numbers that their steps stand for, (1,) or (M,).
        """
        before, after = self._build.grid(value), self._grid(node.output[0])
        outputs = len(kernel)
        steps = before.scale * np.broadcast_to(scale.reshape(-1), (outputs,))
        given = self._real(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        bias = np.zeros(outputs) if given is None else np.broadcast_to(given.ravel(), (outputs,))
        coarser = np.maximum(steps, np.abs(bias) / 2**_BITS_OF_BIAS)
        shares = (steps / coarser).reshape(-1, *[1] * (kernel.ndim - 1))
        return LayerWeights(
            np.rint(kernel * shares).astype(np.int8),
            np.rint(bias / coarser).astype(np.int32),
            FixedPoint(coarser / after.scale),
            (before.zero, after.zero),
        )

    def _convolution(self, node: Any) -> OnnxValue:
        attributes = attributes_of(node)
        value = self._value(node.input[0])
        if len(value.shape) != 4 or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise self._build.fault("is a convolution of another kind than two-dimensional")
        value = self._build.in_order(value, map_order())
        given = self._weights(node.input[1])
        layer = self._layer(node, value, given.values.transpose(0, 2, 3, 1), given.scale)
        outputs, *kernel, width = layer.values.shape
        groups = int(attributes.get("group", 1))
        window, is_point = _window(attributes, value.shape[2:], kernel)
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
        return self._build.add(operator, [value], shape, map_order(), self._grid(node.output[0]))

    def _linear(self, node: Any, value: OnnxValue, weights: QuantisedConstant) -> OnnxValue:
        """Return a linear layer over the last axis, given weights (K, M)."""
        inner, outputs = weights.values.shape
        if weights.scale.size > 1 and weights.scale.shape != (1, outputs):
            raise self._build.fault("has scales for its inputs; they must be for its outputs")
        if not value.last_is_last:
            value = self._build.in_order(value)
        layer = self._layer(node, value, weights.values.T, weights.scale)
        operator = IntegerLinear(layer, math.prod(value.shape) // inner)
        shape = *value.shape[:-1], outputs
        return self._build.add(operator, [value], shape, value.order, self._grid(node.output[0]))

    def _gemm(self, node: Any) -> OnnxValue:
        attributes = attributes_of(node)
        plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1
        if attributes.get("transA", 0) or not plain:
            raise self._build.fault("is a Gemm with factors or a transposed input")
        weights = self._weights(node.input[1])
        if attributes.get("transB", 0):
            scale = weights.scale.T if weights.scale.ndim == 2 else weights.scale
            weights = QuantisedConstant(weights.values.T, scale)
        return self._linear(node, self._value(node.input[0]), weights)

    def _matmul(self, node: Any) -> OnnxValue:
        if node.input[1] in self._constants:
            weights = self._weights(node.input[1])
            if weights.values.ndim == 2:
                return self._linear(node, self._value(node.input[0]), weights)
        if self._constants.keys() & set(node.input):
            raise self._build.fault("multiplies by a constant that is no matrix on the right")
        left, right = (self._build.in_order(self._value(name)) for name in node.input)
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        if left.shape[:-2] != right.shape[:-2] or right.shape[-2] != inner:
            raise self._build.fault(f"multiplies matrices of shapes {left.shape} and {right.shape}")
        grids, after = [self._build.grid(left), self._build.grid(right)], self._grid(node.output[0])
        operator = IntegerMatrixProduct(
            (math.prod(left.shape[:-2]), rows, inner, columns),
            FixedPoint(np.array(grids[0].scale * grids[1].scale / after.scale)),
            (grids[0].zero, grids[1].zero, after.zero),
        )
        shape = *left.shape[:-1], columns
        return self._build.add(operator, [left, right], shape, left.order, after)

    # Functions of single values, and of two

    def _unary(self, node: Any) -> OnnxValue:
        value, grid = self._value(node.input[0]), self._grid(node.output[0])
        real = self._build.grid(value).real(EVERY_INT8)
        return self._build.function(value, grid, grid.nearest(self._computed(node, real)))

    def _computed(self, node: Any, inputs: Floats) -> Floats:
        """Return what ONNX Runtime computes for an operator of one tensor and constants."""
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        others = [name for name in node.input[1:] if name]
        constants = {name: self._real(name) for name in others}
        if any(each is None for each in constants.values()):
            raise self._build.fault("depends on more than one tensor")
        tensors = [
            numpy_helper.from_array(np.asarray(each, np.float32), name)
            for name, each in constants.items()
        ]
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(inputs)])
            for name in (node.input[0], node.output[0])
        ]
        graph = helper.make_graph([node], "one", [ends[0]], [ends[1]], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        found: Floats = session.run(None, {node.input[0]: inputs})[0]
        return found

    def _binary(self, node: Any) -> OnnxValue:
        names = list(node.input)
        grid = self._grid(node.output[0])
        constants = [self._real(name) for name in names]
        if all(each is not None for each in constants):
            raise self._build.fault("has constants alone")
        if constants[0] is not None:
            names, constants = names[::-1], constants[::-1]
        first, constant = self._value(names[0]), constants[1]
        if constant is not None and constant.size == 1:
            real = self._build.grid(first).real(EVERY_INT8)
            other = np.float32(constant.item())
            found = real + other if node.op_type == "Add" else real * other
            return self._build.function(first, grid, grid.nearest(found))
        if constant is not None:
            second = self._constant_value(names[1], first)
        else:
            second = self._value(names[1])
            if (of_one := self._function_of_one(node, first, second, grid)) is not None:
                return of_one
            if math.prod(second.shape) > math.prod(first.shape):
                first, second = second, first
            second = self._build.in_order(second.of_rank(len(first.shape)), first.order)
        return self._combined(node, first, second, grid)

    def _function_of_one(
        self, node: Any, first: OnnxValue, second: OnnxValue, grid: IntegerGrid
    ) -> OnnxValue | None:
        """Return a table if both tensors are functions of the same one, such as x * sigmoid(x)."""
        (base, left), (other, right) = map(self._build.as_function, (first, second))
        if base != other or not first.same_layout(second):
            return None
        x, y = self._build.grid(first).real(left), self._build.grid(second).real(right)
        outputs = grid.nearest(x + y if node.op_type == "Add" else x * y)
        return self._build.function(OnnxValue(base, first.shape, first.order), grid, outputs)

    def _constant_value(self, name: str, beside: OnnxValue) -> OnnxValue:
        """Return a constant as a tensor that is stored as another one that it is combined with."""
        constant = self._constants[name]
        if constant.scale.size != 1:
            raise self._build.fault("adds or multiplies by a constant with more than one scale")
        low = int(constant.values.min())
        zero = -128 - low if low < -128 or constant.values.max() > 127 else 0
        shape = (1,) * (len(beside.shape) - constant.values.ndim) + constant.values.shape
        stored = clipped(constant.values.reshape(shape).transpose(beside.order) + zero)
        tensor = self._build.constant(stored, IntegerGrid(constant.scale.item(), zero))
        return OnnxValue(tensor, shape, beside.order)

    def _combined(
        self, node: Any, first: OnnxValue, second: OnnxValue, grid: IntegerGrid
    ) -> OnnxValue:
        whole, part = first.stored, second.stored
        trailing = tuple(itertools.dropwhile(lambda size: size == 1, part))
        if trailing != whole[len(whole) - len(trailing) :]:
            raise self._build.fault(f"combines tensors of shapes {first.shape} and {second.shape}")
        grids = [self._build.grid(first), self._build.grid(second)]
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
        return self._build.add(operator, [first, second], first.shape, first.order, grid)

    # Reductions

    def _reduction(self, node: Any) -> OnnxValue:
        value, attributes = self._value(node.input[0]), attributes_of(node)
        axes = self._axes(node, attributes, len(value.shape))
        largest = node.op_type == "ReduceMax"
        before = self._build.grid(value)
        grid = self._grids.get(node.output[0], before) if largest else self._grid(node.output[0])
        kept = bool(attributes.get("keepdims", 1)) or node.op_type == "GlobalAveragePool"
        places = [i for i, axis in enumerate(value.order) if axis in axes]
        places = [i for i in places if value.stored[i] > 1] or places[:1]
        if places != list(range(places[0], places[-1] + 1)):
            raise self._build.fault("reduces axes that do not lie together in memory")
        sizes = (
            math.prod(value.stored[: places[0]]),
            math.prod(value.stored[places[0] : places[-1] + 1]),
            math.prod(value.stored[places[-1] + 1 :]),
        )
        scale = FixedPoint(np.array(before.scale / grid.scale / sizes[1]))
        zeros = before.zero, before.zero if largest else grid.zero
        operator = IntegerReduction(largest, sizes, scale, zeros)
        remaining = [axis for axis in range(len(value.shape)) if axis not in axes]
        if kept:
            shape = tuple(1 if i in axes else size for i, size in enumerate(value.shape))
            order = value.order
        else:
            shape = tuple(value.shape[axis] for axis in remaining)
            order = tuple(remaining.index(axis) for axis in value.order if axis in remaining)
        made = self._build.add(operator, [value], shape, order, before if largest else grid)
        return self._build.on_grid(made, grid)

    def _axes(self, node: Any, attributes: Mapping[str, Any], rank: int) -> set[int]:
        if node.op_type == "GlobalAveragePool":
            return set(range(2, rank))
        given = attributes.get("axes")
        if given is None and len(node.input) > 1:
            given = self._arrays[node.input[1]].tolist()
        return {axis % rank for axis in given} if given else set(range(1, rank))

    def _pooling(self, node: Any) -> OnnxValue:
        attributes = attributes_of(node)
        value = self._build.in_order(self._value(node.input[0]), map_order())
        kernel = attributes["kernel_shape"]
        window, _ = _window(attributes, value.shape[2:], kernel)
        largest = node.op_type == "MaxPool"
        whole = largest or attributes.get("count_include_pad", 0) or window.padding == (0, 0)
        odd = window.dilation != (1, 1) or (attributes.get("ceil_mode", 0) and not largest)
        if odd or not whole:
            raise self._build.fault("is a pooling with dilation, ceil_mode or uncounted padding")
        before = self._build.grid(value)
        grid = self._grids.get(node.output[0], before) if largest else self._grid(node.output[0])
        operator = IntegerPooling(
            largest,
            FixedPoint(np.array(before.scale / grid.scale / math.prod(kernel))),
            (before.zero, before.zero if largest else grid.zero),
            value.shape[1],
            window,
        )
        shape = *value.shape[:2], *window.output_size
        made = self._build.add(operator, [value], shape, map_order(), before if largest else grid)
        return self._build.on_grid(made, grid)

    def _concatenation(self, node: Any) -> OnnxValue:
        first, *others = [self._value(name) for name in node.input]
        values = [first, *(self._build.in_order(each, first.order) for each in others)]
        axis = attributes_of(node)["axis"] % len(first.shape)
        place = first.order.index(axis)
        grid = self._grids.get(node.output[0], self._build.grid(first))
        befores = [self._build.grid(each) for each in values]
        tables = [
            None if before == grid else grid.nearest(before.real(EVERY_INT8)) for before in befores
        ]
        widths = tuple(math.prod(each.stored[place:]) for each in values)
        rows = math.prod(first.stored[:place])
        shape = [*first.shape]
        shape[axis] = sum(each.shape[axis] for each in values)
        operator = IntegerConcatenation(rows, widths, tuple(tables))
        return self._build.add(operator, values, tuple(shape), first.order, grid)

    # Operators over the last axis

    def _last_axis(self, node: Any) -> tuple[OnnxValue, int, int]:
        """Return the input, stored with its last axis last, and the rows and columns of it."""
        value = self._value(node.input[0])
        axis = attributes_of(node).get("axis", -1)
        if axis % len(value.shape) != len(value.shape) - 1:
            raise self._build.fault(f"works over axis {axis}; it must be the last one")
        if not value.last_is_last:
            value = self._build.in_order(value)
        return value, math.prod(value.shape[:-1]), value.shape[-1]

    def _softmax(self, node: Any) -> OnnxValue:
        value, rows, columns = self._last_axis(node)
        grid = self._grid(node.output[0])
        operator = IntegerSoftmax.of(
            self._build.grid(value).scale, grid.scale, grid.zero, rows, columns
        )
        return self._build.add(operator, [value], value.shape, value.order, grid)

    def _layer_norm(self, node: Any) -> OnnxValue:
        value, rows, width = self._last_axis(node)
        grid, step = self._grid(node.output[0]), self._build.grid(value).scale
        if width > _WIDEST_NORM:
            raise self._build.fault(f"normalises {width} values; at most {_WIDEST_NORM} fit")
        gamma = self._real(node.input[1])
        beta = self._real(node.input[2]) if len(node.input) > 2 else None
        if gamma is None:
            raise self._build.fault("has factors that are not constant")
        epsilon = attributes_of(node).get("epsilon", 1e-5) * width**2 / step**2
        operator = IntegerLayerNorm.of(
            gamma.reshape(-1) / grid.scale,
            (np.zeros(width) if beta is None else beta.reshape(-1)) / grid.scale,
            min(max(1, round(epsilon)), _LARGEST_EPSILON),
            grid.zero,
            rows,
        )
        return self._build.add(operator, [value], value.shape, value.order, grid)

    # Other arrangements of the same values

    def _movement(self, node: Any) -> OnnxValue:
        value = self._value(node.input[0])
        try:
            index = MOVEMENTS[node.op_type](node, self._arrays, stored_index(value))
        except ValueError as error:
            raise self._build.fault(
                f"cannot rearrange one image of shape {value.shape}; was it exported for another "
                "batch size?"
            ) from error
        plain = tuple(range(index.ndim))
        orders = [plain] if index.ndim != 4 else [map_order(), plain]
        made = self._build.arranged(value, index, orders)
        return self._build.on_grid(made, self._grids.get(node.output[0], self._build.grid(made)))


_READERS: dict[str, Callable[[_Reader, Any], OnnxValue]] = {
    "Conv": _Reader._convolution,
    "Gemm": _Reader._gemm,
    "MatMul": _Reader._matmul,
    "Add": _Reader._binary,
    "Mul": _Reader._binary,
    "Concat": _Reader._concatenation,
    "ReduceMean": _Reader._reduction,
    "ReduceMax": _Reader._reduction,
    "GlobalAveragePool": _Reader._reduction,
    "AveragePool": _Reader._pooling,
    "MaxPool": _Reader._pooling,
    "Softmax": _Reader._softmax,
    "LayerNormalization": _Reader._layer_norm,
    **dict.fromkeys(_UNARY, _Reader._unary),
}
_READERS.update(dict.fromkeys(MOVEMENTS, _Reader._movement))


def _window(
    attributes: Mapping[str, Any], size: Sequence[int], kernel: Sequence[int]
) -> tuple[MapWindow, bool]:
    """Return the window of a convolution or a pooling, and whether it is a single point."""
    strides = attributes.get("strides", (1, 1))
    dilations = attributes.get("dilations", (1, 1))
    pads = attributes.get("pads", (0, 0, 0, 0))
    outputs = []
    for i in range(2):
        left = size[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1
        if attributes.get("ceil_mode", 0):
            # A window that would begin beyond the input is left out.
            left = min(left + strides[i] - 1, size[i] + pads[i] - 1)
        outputs.append(left // strides[i] + 1)
    pairs = size, outputs, kernel, strides, pads[:2], dilations
    window = MapWindow(*((int(each[0]), int(each[1])) for each in pairs))
    return window, window.kernel_size == window.stride == (1, 1) and not any(pads)
