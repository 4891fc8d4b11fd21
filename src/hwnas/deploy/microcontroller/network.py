"""Integer network: operators in order, and the tensors between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.values import IntegerGrid

__all__ = ["IntegerNetwork", "IntegerStep", "IntegerTensor"]


@dataclass(frozen=True, eq=False)
class IntegerTensor:
    """int8 tensor; a value q stands for ``scale * (q - zero)``.

    Attributes:
        shape: Shape as stored, of one image.
        scale: Real number that one step stands for.
        zero: Zero point.
        data: Values, if the tensor is constant.
    """

    shape: tuple[int, ...]
    scale: float
    zero: int
    data: NDArray[np.int8] | None = None

    @property
    def grid(self) -> IntegerGrid:
        """Real numbers that the values stand for."""
        return IntegerGrid(self.scale, self.zero)

    @property
    def size(self) -> int:
        """Number of values, and of bytes."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class IntegerStep:
    """Operator with its tensors, which are numbers in the list of a network.

    Attributes:
        operator: Operator.
        inputs: Tensors that it reads.
        output: Tensor that it writes.
        layer: Name of the layer, for comments and messages.
    """

    operator: IntegerOperator
    inputs: tuple[int, ...]
    output: int
    layer: str


@dataclass(frozen=True, eq=False)
class IntegerNetwork:
    """Network that computes in integers alone.

    Attributes:
        tensors: All tensors; the first one holds the pixels, uint8 (H, W, C).
        steps: Operators in the order in which they run.
        output: Tensor with the outputs of the network.
        output_shape: Shape of the outputs of one image.
    """

    tensors: Sequence[IntegerTensor]
    steps: Sequence[IntegerStep]
    output: int
    output_shape: tuple[int, ...]

    def run(self, pixels: NDArray[np.uint8]) -> NDArray[np.int8]:
        """Return the outputs (N, ...) of pixels (N, H, W, C)."""
        return self._run({0: pixels}, self.steps)

    def run_on_inputs(self, images: NDArray[np.float32]) -> NDArray[np.int8]:
        """Return the outputs (N, ...) of preprocessed images (N, C, H, W).

        The first step, which preprocesses pixels, is left out.
        """
        first = self.steps[0].output
        tensor = self.tensors[first]
        values = tensor.grid.nearest(images).transpose(0, 2, 3, 1)
        return self._run({first: values.reshape(-1, *tensor.shape)}, self.steps[1:])

    def _run(
        self, values: dict[int, NDArray[np.integer]], steps: Sequence[IntegerStep]
    ) -> NDArray[np.int8]:
        for i, tensor in enumerate(self.tensors):
            if tensor.data is not None:
                values[i] = tensor.data[None]
        last = {i: at for at, step in enumerate(steps) for i in step.inputs}
        for at, step in enumerate(steps):
            found = step.operator.run(*(values[i] for i in step.inputs))
            values[step.output] = found.reshape(-1, *self.tensors[step.output].shape)
            for i in step.inputs:
                if last[i] == at and i != self.output:
                    values.pop(i, None)
        outputs: NDArray[np.int8] = values[self.output].astype(np.int8)
        return outputs.reshape(-1, *self.output_shape)

    def real(self, outputs: NDArray[np.int8]) -> NDArray[np.float32]:
        """Return the real numbers that outputs stand for."""
        return self.tensors[self.output].grid.real(outputs)
