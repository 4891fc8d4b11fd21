"""Translation of the steps of an integer network to the operators of a LiteRT file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.microcontroller.tflite_micro.litert_file import LiteRTFile
from hwnas.deploy.microcontroller import IntegerNetwork
from hwnas.deploy.microcontroller.axes import IntegerReduction
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    IntegerPooling,
    LayerWeights,
    MapWindow,
)
from hwnas.deploy.microcontroller.elementwise import IntegerAddition, IntegerProduct, IntegerTable
from hwnas.deploy.microcontroller.network import IntegerStep
from hwnas.deploy.microcontroller.values import EVERY_INT8, IntegerGrid
from hwnas.errors import ConfigError

__all__ = ["litert_file"]

Floats = NDArray[np.float32]
_FUNCTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "QUANTIZE": lambda x: x,
    "RELU": lambda x: np.maximum(x, 0),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "HARD_SWISH": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "HARD_SIGMOID": lambda x: np.clip(x + 3, 0, 6) / 6,
}
"""Functions of single values by the operator; the last one has none of its own."""
_PARTS_OF_LAYERS = {"QUANTIZE": "NONE", "RELU": "RELU", "RELU6": "RELU6"}
"""Activations that a layer may end with, by the operator of the function."""
_SIX_STEPS = IntegerGrid(6 / 255, -128)


def litert_file(network: IntegerNetwork, same_padding: bool) -> bytes:
    """Return a LiteRT file with the weights and the grids of an integer network.

    Its input is the preprocessed image on the grid of the first step, int8 (1, H, W, C).

    Args:
        network: Network, read without joining its tables to layers.
        same_padding: Whether all convolutions pad as LiteRT's SAME does, which takes no operator.
            The shapes are the same, but the outputs are not where PyTorch pads at other sides.

    Raises:
        ConfigError: A step has no operator in LiteRT.
    """
    return _Translation(network, same_padding).file()


class _Translation:
    def __init__(self, network: IntegerNetwork, same_padding: bool) -> None:
        self._network, self._same = network, same_padding
        self._to = LiteRTFile()
        self._numbers: dict[int, int] = {}
        self._read = [i for step in network.steps for i in step.inputs]

    def file(self) -> bytes:
        first, *others = self._network.steps
        source = self._stored(first.output)
        joined: set[int] = set()
        for at, step in enumerate(others):
            if at in joined:
                continue
            following = at + 1 if self._takes_part(step, others, at + 1) else None
            if following is not None:
                joined.add(following)
            self._step(step, None if following is None else others[following])
        return self._to.content(source, self._stored(self._network.output))

    def _takes_part(self, step: IntegerStep, steps: list[IntegerStep], at: int) -> bool:
        """Return whether the next step is an activation that becomes part of a layer."""
        layer = isinstance(step.operator, IntegerLinear | IntegerConvolution | IntegerDepthwise)
        if not layer or at == len(steps) or self._read.count(step.output) != 1:
            return False
        following = steps[at]
        if step.output not in following.inputs or not isinstance(following.operator, IntegerTable):
            return False
        return self._function(following) in _PARTS_OF_LAYERS

    def _step(self, step: IntegerStep, activation: IntegerStep | None) -> None:
        match step.operator:
            case IntegerLinear(weights=weights):
                matrix = weights.values[:, None, None]
                self._layer("CONV_2D", step, weights, matrix, None, activation)
            case IntegerConvolution(weights=weights, window=window):
                self._layer("CONV_2D", step, weights, weights.values, window, activation)
            case IntegerDepthwise(weights=weights, window=window):
                kernel = weights.values[None]
                self._layer("DEPTHWISE_CONV_2D", step, weights, kernel, window, activation)
            case IntegerTable():
                self._table(step)
            case IntegerAddition():
                self._pair("ADD", "AddOptions", step)
            case IntegerProduct():
                self._pair("MUL", "MulOptions", step)
            case IntegerReduction(largest=largest, sizes=(1, _, _)):
                axes = self._to.numbers(np.array([1, 2], np.int32))
                inputs = [self._stored(step.inputs[0]), axes]
                code = "REDUCE_MAX" if largest else "MEAN"
                self._add(code, inputs, step.output, "ReducerOptions", keepDims=True)
            case IntegerPooling(largest=True, window=window):
                self._pool(step, window)
            case _:
                raise self._refused(step)

    def _layer(
        self,
        code: str,
        step: IntegerStep,
        weights: LayerWeights,
        kernel: NDArray[np.int8],
        window: MapWindow | None,
        activation: IntegerStep | None,
    ) -> None:
        """Add a convolution; a linear layer is one of 1 x 1."""
        before, after = (self._network.tensors[i].grid for i in (step.inputs[0], step.output))
        shares = weights.scale.multiplier * 2.0 ** -weights.scale.shift.astype(np.float64)
        scales = np.broadcast_to(shares * after.scale, weights.bias.shape)
        depthwise = code == "DEPTHWISE_CONV_2D"
        constants = [
            self._to.constant(kernel, scales / before.scale, axis=3 if depthwise else 0),
            self._to.constant(weights.bias, scales),
        ]
        source, padding = self._padded(step.inputs[0], window)
        stride, dilation = ((1, 1), (1, 1)) if window is None else (window.stride, window.dilation)
        name = "NONE" if activation is None else _PARTS_OF_LAYERS[self._function(activation)]
        self._add(
            code,
            [source, *constants],
            step.output if activation is None else activation.output,
            "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions",
            padding=padding,
            strideH=stride[0],
            strideW=stride[1],
            dilationHFactor=dilation[0],
            dilationWFactor=dilation[1],
            fusedActivationFunction=self._to.activation(name),
            **({"depthMultiplier": 1} if depthwise else {}),
        )

    def _padded(self, tensor: int, window: MapWindow | None) -> tuple[int, int]:
        """Return the input of a window, padded by an operator where needed, and its padding."""
        source = self._stored(tensor)
        if window is None:
            return source, self._to.padding(False)
        pads = [_pads(window, i) for i in range(2)]
        if not any(map(any, pads)):
            return source, self._to.padding(False)
        if _has_same_size(window) and (self._same or all(map(_is_same, pads))):
            return source, self._to.padding(True)
        shape, grid = self._shape(tensor), self._network.tensors[tensor].grid
        larger = (1, shape[1] + sum(pads[0]), shape[2] + sum(pads[1]), shape[3])
        numbers = self._to.numbers(np.array([(0, 0), *pads, (0, 0)], np.int32))
        output = self._to.tensor(larger, grid)
        self._to.operator("PAD", [source, numbers], output, "PadOptions")
        return output, self._to.padding(False)

    def _table(self, step: IntegerStep) -> None:
        name, source = self._function(step), self._stored(step.inputs[0])
        if name != "HARD_SIGMOID":
            options = {"QUANTIZE": "QuantizeOptions", "HARD_SWISH": "HardSwishOptions"}
            self._add(name, [source], step.output, options.get(name, ""))
            return
        between = self._to.tensor(self._shape(step.inputs[0]), _SIX_STEPS)
        relu6 = self._to.activation("RELU6")
        three, sixth = (self._number(value) for value in (3, 1 / 6))
        self._to.operator(
            "ADD", [source, three], between, "AddOptions", fusedActivationFunction=relu6
        )
        self._add("MUL", [between, sixth], step.output, "MulOptions")

    def _function(self, step: IntegerStep) -> str:
        """Return the function of which a step has the table, to one step of the output."""
        assert isinstance(step.operator, IntegerTable)
        before, after = (self._network.tensors[i].grid for i in (step.inputs[0], step.output))
        real = before.real(EVERY_INT8)
        for name, function in _FUNCTIONS.items():
            found = after.nearest(function(real)).astype(int)
            if np.abs(found - step.operator.values).max() <= 1:
                return name
        raise self._refused(step)

    def _pair(self, code: str, options: str, step: IntegerStep) -> None:
        inputs = [self._stored(i) for i in step.inputs]
        self._add(code, inputs, step.output, options)

    def _pool(self, step: IntegerStep, window: MapWindow) -> None:
        source, padding = self._padded(step.inputs[0], window)
        self._add(
            "MAX_POOL_2D",
            [source],
            step.output,
            "Pool2DOptions",
            padding=padding,
            strideH=window.stride[0],
            strideW=window.stride[1],
            filterHeight=window.kernel_size[0],
            filterWidth=window.kernel_size[1],
        )

    def _add(
        self, code: str, inputs: list[int], output: int, options: str = "", **values: Any
    ) -> None:
        self._to.operator(code, inputs, self._stored(output), options, **values)

    def _number(self, value: float) -> int:
        """Return a constant of one number."""
        return self._to.constant(np.array([127], np.int8), np.array([value / 127]))

    def _stored(self, tensor: int) -> int:
        """Return the LiteRT tensor of a tensor."""
        if tensor not in self._numbers:
            found, shape = self._network.tensors[tensor], self._shape(tensor)
            self._numbers[tensor] = (
                self._to.tensor(shape, found.grid)
                if found.data is None
                else self._to.constant(
                    found.data.reshape(shape), np.array([found.scale]), found.zero
                )
            )
        return self._numbers[tensor]

    def _shape(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a tensor with four axes: one image, height, width, channels."""
        shape = self._network.tensors[tensor].shape
        axes = (1, 1, 1, *shape)[-4:]
        assert math.prod(axes) == math.prod(shape)
        return axes

    def _refused(self, step: IntegerStep) -> ConfigError:
        return ConfigError(f"LiteRT has no operator for {step.operator.kernel} of {step.layer}")


def _pads(window: MapWindow, axis: int) -> tuple[int, int]:
    """Return the rows before and after an input that a window meets, vertically or horizontally."""
    span = (window.kernel_size[axis] - 1) * window.dilation[axis] + 1
    end = (window.output_size[axis] - 1) * window.stride[axis] + span
    before = window.padding[axis]
    return before, max(0, end - before - window.size[axis])


def _has_same_size(window: MapWindow) -> bool:
    """Return whether the output has the size that LiteRT's SAME gives."""
    sizes = zip(window.output_size, window.size, window.stride, strict=True)
    return all(made == -(-size // stride) for made, size, stride in sizes)


def _is_same(pads: tuple[int, int]) -> bool:
    """Return whether rows before and after are divided as LiteRT's SAME divides them."""
    return pads[0] == sum(pads) // 2
