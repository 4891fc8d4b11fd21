"""Tensors of a quantised ONNX graph while its nodes are read, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.fixed_point import clipped
from hwnas.deploy.microcontroller.reading.building import IntegerNetworkBuilder
from hwnas.deploy.microcontroller.values import IntegerGrid, OnnxValue, QuantisedConstant
from hwnas.deploy.onnx.graph import attributes_of

__all__ = ["OnnxTensors"]


class OnnxTensors:
    """Constants, int8 tensors and grids of an ONNX graph.

    Attributes:
        build: Network to which operators are added.
        arrays: Arrays of the graph by name, also shapes that are known when nodes are read.

    Args:
        build: Network to which operators are added.
        arrays: Constant arrays of the graph.
    """

    def __init__(self, build: IntegerNetworkBuilder, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.build, self.arrays = build, dict(arrays)
        self._constants: dict[str, QuantisedConstant] = {}
        self._values: dict[str, OnnxValue] = {}
        self._grids: dict[str, IntegerGrid] = {}

    def note_grids(self, nodes: Iterable[Any]) -> None:
        """Note the grids to which the nodes QuantizeLinear of a graph round."""
        for node in nodes:
            if node.op_type == "QuantizeLinear":
                self._grids.setdefault(node.input[0], self.grid_of(node))

    def grid_of(self, node: Any) -> IntegerGrid:
        """Return the grid of a node QuantizeLinear.

        Raises:
            ArtifactError: It does not round to eight bits with one scale.
        """
        scale, zero = (self.arrays.get(name) for name in node.input[1:3])
        eight_bits = zero is not None and zero.dtype in (np.uint8, np.int8)
        if scale is None or scale.size != 1 or zero is None or not eight_bits:
            self.build.layer = node.name
            raise self.build.fault("is not quantised to eight bits with one scale")
        return IntegerGrid(float(scale), int(zero) - (128 if zero.dtype == np.uint8 else 0))

    def grid(self, name: str) -> IntegerGrid:
        """Return the grid to which an operator's output is rounded.

        Raises:
            ArtifactError: It is not rounded.
        """
        if name not in self._grids:
            raise self.build.fault("gives outputs in floating point; all must be int8")
        return self._grids[name]

    def grid_or(self, name: str, otherwise: IntegerGrid) -> IntegerGrid:
        """Return the grid to which an operator's output is rounded, or another one if none is."""
        return self._grids.get(name, otherwise)

    def value(self, name: str) -> OnnxValue:
        """Return an int8 tensor.

        Raises:
            ArtifactError: The tensor is in floating point.
        """
        if name not in self._values:
            raise self.build.fault(
                "stays in floating point; a microcontroller needs all layers in int8"
            )
        return self._values[name]

    def put(self, name: str, value: OnnxValue) -> None:
        """Store an int8 tensor."""
        self._values[name] = value

    def dequantised(self, node: Any) -> None:
        """Store the output of a node DequantizeLinear: a tensor as it is, or a constant."""
        source, target = node.input[0], node.output[0]
        if source not in self.arrays:
            self.put(target, self.value(source))
            return
        values, scale = self.arrays[source].astype(np.int64), self.arrays[node.input[1]]
        zero = self.arrays[node.input[2]] if len(node.input) > 2 else np.zeros(1)
        if scale.size > 1:
            axis = attributes_of(node).get("axis", 1)
            shape = [-1 if each == axis else 1 for each in range(values.ndim)]
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        self._constants[target] = QuantisedConstant(
            values - zero.astype(np.int64), scale.astype(np.float64)
        )

    def constant(self, name: str) -> QuantisedConstant | None:
        """Return a quantised constant, or None if the name is not one."""
        return self._constants.get(name)

    def real(self, name: str) -> NDArray[np.float64] | None:
        """Return a constant as real numbers, or None if the name is not one."""
        if name in self._constants:
            return self._constants[name].real
        return self.arrays[name].astype(np.float64) if name in self.arrays else None

    def weights(self, name: str) -> QuantisedConstant:
        """Return a constant of eight bits.

        Raises:
            ArtifactError: The name is not one.
        """
        weights = self.constant(name)
        if weights is None or (clipped(weights.values) != weights.values).any():
            raise self.build.fault("is not quantised: its weights are not eight-bit constants")
        return weights
