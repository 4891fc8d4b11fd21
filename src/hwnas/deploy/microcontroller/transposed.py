"""Transposed convolution, which enlarges maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.convolution import LayerWeights
from hwnas.deploy.microcontroller.operator import Constants, Int8, IntegerOperator

__all__ = ["IntegerTransposedConvolution"]


@dataclass(frozen=True, eq=False)
class IntegerTransposedConvolution(IntegerOperator):
    """Transposed convolution: (N, H, W, C) -> (N, H', W', M); each pair is vertical, horizontal.

    Attributes:
        weights: LayerWeights (M, kernel height, kernel width, C).
        size: Size of the input.
        output_size: Size of the output.
        stride: Distances in the output between the kernels of neighbouring places of the input.
        padding: Rows above and columns to the left that are taken off the output.
    """

    kernel = "convolve_transposed"
    in_place = False
    weights: LayerWeights
    size: tuple[int, int]
    output_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def run(self, *inputs: NDArray[np.integer]) -> Int8:
        """See `IntegerOperator.run`."""
        kernel = self.weights.values.astype(np.float64)
        outputs, *kernel_size, width = kernel.shape
        maps = self.weights.centred(inputs[0]).reshape(-1, *self.size, width)
        ends = [(self.size[i] - 1) * self.stride[i] + 1 for i in range(2)]
        sides = [
            max(ends[i] + kernel_size[i] - 1, self.padding[i] + self.output_size[i])
            for i in range(2)
        ]
        sums = np.zeros((len(maps), *sides, outputs))
        for row, column in np.ndindex(*kernel_size):
            rows = slice(row, row + ends[0], self.stride[0])
            columns = slice(column, column + ends[1], self.stride[1])
            sums[:, rows, columns] += maps @ kernel[:, row, column].T
        kept = (slice(self.padding[i], self.padding[i] + self.output_size[i]) for i in range(2))
        return self.weights.finished(sums[:, *kept])

    def constants(self) -> Constants:
        """See `IntegerOperator.constants`."""
        outputs, *kernel_size, width = self.weights.values.shape
        layer = self.weights.constants(np.zeros(outputs, np.int64))
        sizes = *self.size, width, *self.output_size, outputs, *kernel_size
        return *layer, self.weights.zeros[0], *sizes, *self.stride, *self.padding
