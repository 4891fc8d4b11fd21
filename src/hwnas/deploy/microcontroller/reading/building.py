"""Steps of an integer network while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.axes import IntegerPermutation
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
)
from hwnas.deploy.microcontroller.elementwise import IntegerTable
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep, IntegerTensor
from hwnas.deploy.microcontroller.operator import IntegerOperator, looked_up
from hwnas.deploy.microcontroller.reading.copies import readers_of, without_needless_copies
from hwnas.deploy.microcontroller.values import (
    EVERY_INT8,
    IntegerGrid,
    OnnxValue,
    stored_index,
    strides_of,
)
from hwnas.deploy.onnx.node_names import block_of
from hwnas.errors import ArtifactError

__all__ = ["IntegerNetworkBuilder"]

_IDENTITY = EVERY_INT8.astype(np.int8)
_AXES = 4


class IntegerNetworkBuilder:
    """Integer network to which operators are added one by one.

    Functions of single values are tables of the tensor that the first of them reads, so that a
    chain of them takes one step.

    Attributes:
        layer: Name of the node that is read, for steps and messages.

    Args:
        path: ONNX file, for messages.
        pixels: Height, width and channels of the images.
    """

    def __init__(self, path: Path, pixels: tuple[int, int, int]) -> None:
        self.layer = ""
        self._path = path
        self._tensors = [IntegerTensor(pixels, 1.0, 0)]
        self._steps: list[IntegerStep] = []
        self._tables: dict[int, tuple[int, NDArray[np.int8]]] = {}

    def fault(self, what: str) -> ArtifactError:
        """Return the error for a layer that has no integer version."""
        name = block_of(self.layer) or self.layer
        return ArtifactError(f"{self._path}: layer {name} {what}")

    def grid(self, value: OnnxValue) -> IntegerGrid:
        """Return the grid of a tensor."""
        return self._tensors[value.tensor].grid

    def add(
        self,
        operator: IntegerOperator,
        inputs: Sequence[OnnxValue],
        shape: tuple[int, ...],
        order: tuple[int, ...],
        grid: IntegerGrid,
    ) -> OnnxValue:
        """Add an operator, and return its output.

        Args:
            operator: Operator.
            inputs: Tensors that it reads.
            shape: Shape of the output in the ONNX file.
            order: Order in which the axes of the output are stored.
            grid: Grid of the output.
        """
        return self._added(operator, [each.tensor for each in inputs], shape, order, grid)

    def from_pixels(
        self,
        operator: IntegerOperator,
        shape: tuple[int, ...],
        order: tuple[int, ...],
        grid: IntegerGrid,
    ) -> OnnxValue:
        """Add the operator that reads the pixels, and return its output."""
        return self._added(operator, [0], shape, order, grid)

    def constant(self, data: NDArray[np.int8], grid: IntegerGrid) -> int:
        """Add a constant tensor as stored, and return its number."""
        self._tensors.append(IntegerTensor(data.shape, grid.scale, grid.zero, data))
        return len(self._tensors) - 1

    def function(self, value: OnnxValue, grid: IntegerGrid, outputs: NDArray[np.int8]) -> OnnxValue:
        """Add a function of the values of a tensor, given for -128 to 127."""
        base, before = self.as_function(value)
        whole = looked_up(outputs, before)
        table = IntegerTable(whole, self._tensors[base].size)
        made = self._added(table, [base], value.shape, value.order, grid)
        self._tables[made.tensor] = base, whole
        return made

    def as_function(self, value: OnnxValue) -> tuple[int, NDArray[np.int8]]:
        """Return the tensor of which a tensor is a function, and the function as a table."""
        return self._tables.get(value.tensor, (value.tensor, _IDENTITY))

    def on_grid(self, value: OnnxValue, grid: IntegerGrid) -> OnnxValue:
        """Return a tensor on another grid."""
        before = self.grid(value)
        if before == grid:
            return value
        return self.function(value, grid, grid.nearest(before.real(EVERY_INT8)))

    def in_order(self, value: OnnxValue, order: tuple[int, ...] | None = None) -> OnnxValue:
        """Return a tensor stored in an order of axes, that of the ONNX file if None."""
        wanted = tuple(range(len(value.shape))) if order is None else order
        return self.arranged(value, stored_index(value), [wanted])

    def arranged(
        self, value: OnnxValue, places: NDArray[np.int64], orders: Sequence[tuple[int, ...]]
    ) -> OnnxValue:
        """Return numbers of a tensor in another arrangement; without a copy if an order permits.

        Args:
            value: Tensor.
            places: Place in memory of each number of the result, in its shape in the ONNX file.
            orders: Orders in which the result may be stored; a copy has the last one.

        Raises:
            ArtifactError: It is more than an exchange of four axes, or does not begin at the first
                number.
        """
        for order in orders:
            flat = places.transpose(order).reshape(-1)
            whole = flat.size == self._tensors[value.tensor].size
            if whole and (flat == np.arange(flat.size)).all():
                return OnnxValue(value.tensor, places.shape, order)
        axes = None if flat[0] else strides_of(flat)
        if axes is None or len(axes) > _AXES:
            raise self.fault("reorders its values in a way that has no integer version")
        copy = IntegerPermutation(tuple([(1, 0)] * (_AXES - len(axes)) + axes))
        return self.add(copy, [value], places.shape, orders[-1], self.grid(value))

    def network(self, output: OnnxValue, join_tables: bool = True) -> IntegerNetwork:
        """Return the network of the steps on which an output depends.

        Args:
            output: Output of the network.
            join_tables: Whether a table that alone reads the output of a layer becomes part of it.
        """
        steps = without_needless_copies(_used(self._steps, output.tensor), output.tensor)
        if join_tables:
            steps = _joined_tables(steps, output.tensor)
        return IntegerNetwork(self._tensors, steps, output.tensor, output.shape[1:])

    def _added(
        self,
        operator: IntegerOperator,
        inputs: Sequence[int],
        shape: tuple[int, ...],
        order: tuple[int, ...],
        grid: IntegerGrid,
    ) -> OnnxValue:
        stored = tuple(shape[axis] for axis in order)
        self._tensors.append(IntegerTensor(stored, grid.scale, grid.zero))
        number = len(self._tensors) - 1
        self._steps.append(IntegerStep(operator, tuple(inputs), number, self.layer))
        return OnnxValue(number, shape, order)


def _used(steps: Sequence[IntegerStep], output: int) -> list[IntegerStep]:
    """Return the steps on which an output depends."""
    needed, kept = {output}, []
    for step in reversed(steps):
        if step.output in needed:
            needed.update(step.inputs)
            kept.append(step)
    return kept[::-1]


def _joined_tables(steps: Sequence[IntegerStep], output: int) -> list[IntegerStep]:
    """Return the steps with each table that alone reads the output of a layer as part of it."""
    readers = readers_of(steps, output)
    layers: dict[int, int] = {}
    joined: list[IntegerStep] = []
    for step in steps:
        operator, source = step.operator, step.inputs[0]
        at = layers.get(source)
        if isinstance(operator, IntegerTable) and at is not None and readers[source] == 1:
            layer = joined[at]
            assert isinstance(layer.operator, IntegerLinear | IntegerConvolution | IntegerDepthwise)
            weights = replace(layer.operator.weights, table=operator.values)
            whole = replace(layer.operator, weights=weights)
            joined[at] = replace(layer, operator=whole, output=step.output)
        else:
            if isinstance(operator, IntegerLinear | IntegerConvolution | IntegerDepthwise):
                layers[step.output] = len(joined)
            joined.append(step)
    return joined
