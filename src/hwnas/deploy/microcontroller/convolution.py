"""Operators with weights, and those that move a window over a map."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.fixed_point import FixedPoint, clipped
from hwnas.deploy.microcontroller.operator import (
    Constants,
    Int8,
    IntegerOperator,
    RowPart,
    looked_up,
    one_scale,
    part_of_rows,
)

__all__ = [
    "IntegerConvolution",
    "IntegerDepthwise",
    "IntegerLinear",
    "IntegerPooling",
    "LayerWeights",
    "MapWindow",
    "window_of",
]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Numbers of a layer with weights.

    Attributes:
        values: int8, with the M outputs in front unless the operator says otherwise.
        bias: int32 (M,), in steps of the products.
        scale: Output steps for each step of a product, (M,).
        zeros: Zero points of input and output.
        table: Function of the outputs, see `IntegerTable`; None for the outputs themselves.
    """

    values: Int8
    bias: NDArray[np.int32]
    scale: FixedPoint
    zeros: tuple[int, int]
    table: Int8 | None = None

    def centred(self, inputs: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return inputs less their zero point."""
        return inputs.astype(np.float64) - self.zeros[0]

    def finished(self, sums: NDArray[np.float64]) -> Int8:
        """Return the outputs (..., M), of sums of products without the bias."""
        whole = self.scale.times(sums.astype(np.int64) + self.bias)
        outputs = clipped(whole + self.zeros[1])
        return outputs if self.table is None else looked_up(self.table, outputs)

    def constants(self, sums: NDArray[np.int64]) -> Constants:
        """Return the arguments of a kernel that describe the layer.

        The kernels multiply inputs as they are, so the bias has the zero point of the input times
        the sum of the weights taken off.

        Args:
            sums: Sum of the weights of each output, (M,).
        """
        bias = (self.bias - self.zeros[0] * sums).astype(np.int32)
        scale = self.scale
        return self.values, bias, scale.multiplier, scale.shift, self.table, self.zeros[1]


@dataclass(frozen=True)
class MapWindow:
    """Kernel that moves over a map; each pair is vertical and horizontal.

    Attributes:
        size: Size of the input.
        output_size: Size of the output.
        kernel_size: Size of the kernel.
        stride: Steps of the kernel.
        padding: Rows above and columns to the left of the input.
        dilation: Distances between the places of the kernel.
    """

    size: tuple[int, int]
    output_size: tuple[int, int]
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def span(self) -> int:
        """Number of rows from the first to the last that the kernel meets at once."""
        return (self.kernel_size[0] - 1) * self.dilation[0] + 1

    def seen(
        self, values: NDArray[Any], missing: int = 0
    ) -> Iterator[tuple[tuple[int, int], NDArray[Any]]]:
        """Yield each place of the kernel with the values that it meets, (N, H', W', C).

        Args:
            values: Input (N, H, W, C), or any shape of as many values.
            missing: Value beyond the edges.
        """
        spans, pads = [], []
        for i in range(2):
            stride, dilation, before = self.stride[i], self.dilation[i], self.padding[i]
            end = (self.output_size[i] - 1) * stride + 1
            last = end + (self.kernel_size[i] - 1) * dilation
            pads.append((before, max(0, last - before - self.size[i])))
            starts = (dilation * place for place in range(self.kernel_size[i]))
            spans.append([slice(start, start + end, stride) for start in starts])
        maps = values.reshape(len(values), *self.size, -1)
        padded = np.pad(maps, ((0, 0), *pads, (0, 0)), constant_values=missing)
        for (row, rows), (column, columns) in itertools.product(*map(enumerate, spans)):
            yield (row, column), padded[:, rows, columns]

    def constants(self, channels: int, outputs: int | None = None) -> tuple[int, ...]:
        """Return the arguments of a kernel that computes one row of the output."""
        made = () if outputs is None else (outputs,)
        sizes = self.size[1], channels, self.output_size[1], *made, *self.kernel_size
        return *sizes, self.stride[1], self.padding[1]


@dataclass(frozen=True, eq=False)
class IntegerLinear(IntegerOperator):
    """Linear layer or 1 x 1 convolution: (N, ..., K) -> (N, ..., M).

    Attributes:
        weights: LayerWeights (M, K).
        rows: Number of vectors in an image.
    """

    kernel = "linear"
    in_place = False
    weights: LayerWeights
    rows: int

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        matrix = self.weights.values.astype(np.float64)
        rows = inputs[0].reshape(-1, self.rows, matrix.shape[1])
        return self.weights.finished(self.weights.centred(rows) @ matrix.T)

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        outputs, inputs = self.weights.values.shape
        sums = self.weights.values.sum(1, dtype=np.int64)
        return *self.weights.constants(sums), self.rows, inputs, outputs

    def part(self, rows: int) -> RowPart | None:
        """See `IntegerOperator.part`."""
        return part_of_rows(self, rows, self.weights.values.shape[1])

    @property
    def rows_possible(self) -> int:
        """See `IntegerOperator.rows_possible`."""
        return self.rows


@dataclass(frozen=True, eq=False)
class IntegerConvolution(IntegerOperator):
    """Convolution: (N, H, W, C) -> (N, H', W', M).

    Attributes:
        weights: LayerWeights (M, kernel height, kernel width, C / groups).
        window: Kernel.
        groups: Number of groups.
    """

    kernel = "convolve"
    in_place = False
    weights: LayerWeights
    window: MapWindow
    groups: int = 1

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        kernel = self.weights.values.astype(np.float64)
        outputs, _, _, width = kernel.shape
        each = outputs // self.groups
        sums = np.zeros((len(inputs[0]), *self.window.output_size, outputs))
        for (row, column), seen in self.window.seen(self.weights.centred(inputs[0])):
            for group in range(self.groups):
                made = slice(group * each, (group + 1) * each)
                read = slice(group * width, (group + 1) * width)
                sums[..., made] += seen[..., read] @ kernel[made, row, column].T
        return self.weights.finished(sums)

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        outputs, _, _, width = self.weights.values.shape
        sizes = self.window.constants(width * self.groups, outputs)
        layer = self.weights.constants(self.weights.values.sum((1, 2, 3), dtype=np.int64))
        return *layer, self.weights.zeros[0], *sizes, self.window.dilation[1], self.groups


@dataclass(frozen=True, eq=False)
class IntegerDepthwise(IntegerOperator):
    """Convolution of each channel alone: (N, H, W, C) -> (N, H', W', C).

    Attributes:
        weights: LayerWeights (kernel height, kernel width, C).
        window: Kernel.
    """

    kernel = "convolve_depthwise"
    in_place = False
    weights: LayerWeights
    window: MapWindow

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        kernel = self.weights.values.astype(np.float64)
        sums = np.zeros((len(inputs[0]), *self.window.output_size, kernel.shape[2]))
        for place, seen in self.window.seen(self.weights.centred(inputs[0])):
            sums += seen * kernel[place]
        return self.weights.finished(sums)

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        sizes = self.window.constants(self.weights.values.shape[2])
        layer = self.weights.constants(self.weights.values.sum((0, 1), dtype=np.int64))
        return *layer, self.weights.zeros[0], *sizes, self.window.dilation[1]


@dataclass(frozen=True, eq=False)
class IntegerPooling(IntegerOperator):
    """Largest value, or mean, of each window: (N, H, W, C) -> (N, H', W', C).

    Attributes:
        largest: Whether the largest value is taken; the mean otherwise, in which padding counts as
            zero.
        scale: Output steps for each step of a sum, for the mean.
        zeros: Zero points of input and output.
        channels: C.
        window: Kernel, without dilation.
    """

    kernel = "pool"
    in_place = False
    largest: bool
    scale: FixedPoint
    zeros: tuple[int, int]
    channels: int
    window: MapWindow

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        centred = inputs[0].astype(np.int64) - self.zeros[0]
        seen = self.window.seen(centred, -256 if self.largest else 0)
        values = np.stack([each for _, each in seen])
        if self.largest:
            return clipped(values.max(0) + self.zeros[0])
        return clipped(self.scale.times(values.sum(0)) + self.zeros[1])

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        sizes = self.window.constants(self.channels)
        return int(self.largest), *one_scale(self.scale), *self.zeros, *sizes


def window_of(operator: IntegerOperator) -> MapWindow | None:
    """Return the window that an operator moves over a map, if it does."""
    return (
        operator.window
        if isinstance(operator, IntegerConvolution | IntegerDepthwise | IntegerPooling)
        else None
    )
