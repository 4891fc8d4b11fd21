"""In which numbers an ONNX file computes, and files in half precision."""

from __future__ import annotations

import warnings
from pathlib import Path

from hwnas.atomic import replacing
from hwnas.deploy.first_line import first_line
from hwnas.deploy.onnx_graph import read_model
from hwnas.errors import ArtifactError

__all__ = ["number_format", "to_float16"]

_QUANTISED = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger"}


def number_format(model: Path) -> str:
    """The format that a file itself asks for, whatever runs it.

    Returns:
        ``"int8"`` if it quantises tensors, ``"fp16"`` if it has weights in half precision, else
        ``"fp32"``.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    import onnx

    graph = read_model(model).graph
    if any(node.op_type in _QUANTISED for node in graph.node):
        return "int8"
    half = onnx.TensorProto.FLOAT16
    return "fp16" if any(tensor.data_type == half for tensor in graph.initializer) else "fp32"


def to_float16(source: Path, to: Path) -> Path:
    """Write a network with weights and activations in half precision; inputs and outputs stay.

    Args:
        source: An ONNX file in single precision.
        to: The file to write.

    Returns:
        ``to``.

    Raises:
        ArtifactError: The file is damaged or cannot be converted.
        StorageError: ``to`` cannot be written.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = read_model(source)
    with replacing(to) as temporary:
        try:
            with warnings.catch_warnings():
                # Numbers too small for the format become its smallest, which is what is wanted.
                warnings.simplefilter("ignore", UserWarning)
                half = convert_float_to_float16(model, keep_io_types=True)
            OnnxModel(half).topological_sort()  # its casts come last
        except Exception as error:  # it raises whatever it meets
            reason = first_line(error)
            raise ArtifactError(f"{source} cannot be converted to fp16: {reason}") from error
        temporary.write_bytes(half.SerializeToString())
    return to
