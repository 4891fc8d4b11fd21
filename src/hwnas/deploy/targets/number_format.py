"""Number format of an ONNX file, and conversion to half precision."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

from hwnas.atomic import replacing
from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.graph import messages, read_model, read_whole_model
from hwnas.deploy.targets.target import Device, Target
from hwnas.errors import ArtifactError

__all__ = ["number_format", "onnxruntime_target", "to_float16"]

_QUANTISED = re.compile(
    r"[Qq]uanti[sz]e|Quant$|Integer|^QLinear|^QGemm$|^QAttention$|^QOrdered|^QEmbedLayer|^QMoE$"
    r"|NBits|Bnb4|FpQ4|BFP|Float8"
)
"""Pattern in the names of operators that compute with, produce or read low-precision numbers: those
of ONNX, of ONNX Runtime, of OpenVINO and of QONNX."""


def number_format(model: Path) -> str:
    """Return the number format that a file itself asks for, whatever runs it.

    Nested graphs and functions count, too.

    Returns:
        ``"int8"`` if it has quantised operators, of eight bits or fewer; ``"fp16"`` or ``"bf16"``
        if it has weights in one of these formats; otherwise ``"fp32"``.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    import onnx

    read = read_model(model)
    if any(_QUANTISED.search(node.op_type) for node in messages(read, "NodeProto")):
        return "int8"
    formats: dict[int, str] = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
    sizes = dict.fromkeys(formats.values(), 0)
    known: dict[str, int] = {}
    for tensor in messages(read, "TensorProto"):
        known[tensor.name] = max(1, math.prod(tensor.dims))
        if found := formats.get(tensor.data_type):
            sizes[found] += known[tensor.name]
    for node in messages(read, "NodeProto"):
        if node.op_type == "Cast" and node.input and node.input[0] in known:
            wanted = next((each.i for each in node.attribute if each.name == "to"), 0)
            if wanted in formats:  # weights stored in one format and used in another
                sizes[formats[wanted]] += known[node.input[0]]
    largest = max(sizes, key=sizes.__getitem__)
    return largest if sizes[largest] else "fp32"


def onnxruntime_target(model: Path, batch: int = 1) -> Target:
    """Return ONNX Runtime on this machine's processor, in the number format of a file.

    Args:
        model: ONNX file.
        batch: Number of images in a batch.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return Target(Device("cpu", "onnxruntime", batch), number_format(model))


def to_float16(source: Path, to: Path) -> Path:
    """Write a network with weights and activations in half precision; inputs and outputs stay.

    Args:
        source: ONNX file in single precision.
        to: File to write.

    Returns:
        ``to``.

    Raises:
        ArtifactError: The file is damaged or cannot be converted.
        StorageError: ``to`` cannot be written.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = read_whole_model(source)
    with replacing(to) as temporary:
        try:
            with warnings.catch_warnings():
                # It warns that numbers too small for the format become its smallest, as wanted.
                warnings.simplefilter("ignore", UserWarning)
                half = convert_float_to_float16(model, keep_io_types=True)
            OnnxModel(half).topological_sort()  # the converter appends its casts
        except Exception as error:  # the converter may raise anything
            reason = first_line(error)
            raise ArtifactError(f"{source} cannot be converted to fp16: {reason}") from error
        temporary.write_bytes(half.SerializeToString())
    return to
