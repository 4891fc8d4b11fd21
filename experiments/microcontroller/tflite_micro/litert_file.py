"""LiteRT file in eight-bit integers, written tensor by tensor and operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.values import IntegerGrid

__all__ = ["LiteRTFile"]

_VERSION = 3
_TYPES = {"int8": "INT8", "int32": "INT32"}
_LARGEST_OLD_CODE = 127


class LiteRTFile:
    """LiteRT file under construction; its schema is that of the package tflite-micro."""

    def __init__(self) -> None:
        from tflite_micro.tensorflow.lite.micro.python import schema_py_generated

        self._schema: Any = schema_py_generated
        self._buffers: list[Any] = [self._schema.BufferT()]
        self._tensors: list[Any] = []
        self._codes: list[str] = []
        self._operators: list[Any] = []

    def tensor(self, shape: tuple[int, ...], grid: IntegerGrid) -> int:
        """Add an int8 tensor that the interpreter stores, and return its number."""
        return self._tensor(shape, "int8", 0, self._quantisation([grid.scale], [grid.zero], 0))

    def constant(
        self, values: NDArray[Any], scales: NDArray[np.floating], zero: int = 0, axis: int = 0
    ) -> int:
        """Add a constant tensor with one scale, or one for each place of an axis."""
        zeros = np.full(len(scales), zero)
        return self._constant(values, self._quantisation(scales, zeros, axis))

    def numbers(self, values: NDArray[np.int32]) -> int:
        """Add a constant tensor of integers that stand for themselves, such as a shape."""
        return self._constant(values, None)

    def operator(
        self, code: str, inputs: list[int], output: int, options: str = "", **values: Any
    ) -> None:
        """Add an operator.

        Args:
            code: Name in the schema, such as ``"CONV_2D"``.
            inputs: Tensors that it reads.
            output: Tensor that it writes.
            options: Name of its options in the schema, such as ``"Conv2DOptions"``, if it has any.
            values: Values of its options.
        """
        if code not in self._codes:
            self._codes.append(code)
        made = self._schema.OperatorT(self._codes.index(code), inputs, [output])
        if options:
            made.builtinOptionsType = getattr(self._schema.BuiltinOptions, options)
            made.builtinOptions = getattr(self._schema, f"{options}T")(**values)
        self._operators.append(made)

    def content(self, source: int, output: int) -> bytes:
        """Return the file, of a network from one tensor to another one."""
        import flatbuffers

        graph = self._schema.SubGraphT(self._tensors, [source], [output], self._operators)
        codes = [self._code(name) for name in self._codes]
        model = self._schema.ModelT(_VERSION, codes, [graph], "hwnas", self._buffers)
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def activation(self, name: str) -> int:
        """Return the number of an activation that operators may end with, such as ``"RELU6"``."""
        return int(getattr(self._schema.ActivationFunctionType, name))

    def padding(self, same: bool) -> int:
        """Return the number of the padding SAME or VALID."""
        return int(self._schema.Padding.SAME if same else self._schema.Padding.VALID)

    def _code(self, name: str) -> Any:
        number = getattr(self._schema.BuiltinOperator, name)
        return self._schema.OperatorCodeT(min(number, _LARGEST_OLD_CODE), None, 1, number)

    def _constant(self, values: NDArray[Any], quantisation: Any) -> int:
        self._buffers.append(self._schema.BufferT(np.frombuffer(values.tobytes(), np.uint8)))
        number = len(self._buffers) - 1
        return self._tensor(values.shape, str(values.dtype), number, quantisation)

    def _tensor(self, shape: tuple[int, ...], kind: str, buffer: int, quantisation: Any) -> int:
        number = getattr(self._schema.TensorType, _TYPES[kind])
        name = f"t{len(self._tensors)}"
        self._tensors.append(self._schema.TensorT(list(shape), number, buffer, name, quantisation))
        return len(self._tensors) - 1

    def _quantisation(self, scales: Any, zeros: Any, axis: int) -> Any:
        return self._schema.QuantizationParametersT(
            scale=np.asarray(scales, np.float32),
            zeroPoint=np.asarray(zeros, np.int64),
            quantizedDimension=axis,
        )
