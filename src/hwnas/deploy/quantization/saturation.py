"""Detection of int8 files whose sums are wrong on processors without VNNI.

`hwnas.deploy.targets.processor.sums_saturate` explains the cause. With weights of seven bits
(reduced range) nothing can saturate: 2 x 255 x 64 is 32,640. Nothing can saturate either with
signed activations (S8S8) or with unsigned weights (U8U8), which ONNX Runtime multiplies by other
instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwnas.deploy.onnx.graph import messages, read_whole_model
from hwnas.deploy.targets.processor import sums_saturate
from hwnas.deploy.targets.target import Target

__all__ = ["LARGEST_REDUCED", "may_saturate", "saturation_warning"]

LARGEST_REDUCED = 64
"""Largest weight in the reduced range."""
_TAKES_UNSIGNED = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
_READS_OR_MAKES = ("QuantizeLinear", "DequantizeLinear")


def may_saturate(model: Path) -> bool:
    """Return whether an ONNX file multiplies unsigned by signed bytes too large for 16-bit sums.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    from onnx import TensorProto

    read = read_whole_model(model)
    found = _constants(read)
    constants = dict(found)
    unsigned = {name for name, each in found if each.data_type == TensorProto.UINT8}
    if not any(_is_unsigned(node, unsigned) for node in messages(read, "NodeProto")):
        return False
    return any(_has_large_weights(each) for _, each in found) or any(
        _makes_large_weights(node, constants)
        for node in messages(read, "NodeProto")
        if node.op_type == "QuantizeLinear"
    )


def _has_large_weights(tensor: Any) -> bool:
    """Return whether a tensor holds signed bytes beyond the reduced range."""
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != TensorProto.INT8 or len(tensor.dims) < 2:
        return False
    weights = numpy_helper.to_array(tensor).astype(np.int16)
    return bool(weights.size and np.abs(weights).max() > LARGEST_REDUCED)


def _makes_large_weights(node: Any, constants: Mapping[str, Any]) -> bool:
    """Return whether a ``QuantizeLinear`` rounds stored floats to bytes beyond the reduced range.

    PyTorch exports weights in this way. A runtime computes the bytes once, when it loads the file.
    """
    import numpy as np
    from onnx import TensorProto, numpy_helper

    weights, scale, zero = (constants.get(name) for name in (*node.input, "", "", "")[:3])
    given = {each.name: each.i for each in node.attribute}
    kind = given.get("output_dtype", 0) if zero is None else zero.data_type
    if weights is None or scale is None or kind != TensorProto.INT8 or len(weights.dims) < 2:
        return False
    steps = numpy_helper.to_array(scale).astype(np.float64)
    if steps.ndim > 1:  # per block: the largest value of each becomes the largest byte
        return True
    floats = numpy_helper.to_array(weights)
    try:
        if steps.size > 1:
            shape = [1] * floats.ndim
            shape[given.get("axis", 1)] = -1
            steps = steps.reshape(shape)
        with np.errstate(all="ignore"):
            return bool(np.abs(np.rint(floats / steps)).max() > LARGEST_REDUCED)
    except (ValueError, IndexError):  # shapes do not fit, and no runtime accepts them
        return False


def _constants(model: Any) -> list[tuple[str, Any]]:
    """Return the constant tensors of a file, with the names by which nodes refer to them."""
    found = [
        (tensor.name, tensor)
        for graph in messages(model, "GraphProto")
        for tensor in graph.initializer
    ]
    for node in messages(model, "NodeProto"):
        if node.op_type == "Constant":
            found += [(node.output[0], each.t) for each in node.attribute if each.name == "value"]
    return found


def _is_unsigned(node: Any, unsigned: set[str]) -> bool:
    """Return whether a node rounds activations to unsigned bytes, or computes with such bytes."""
    if node.op_type in _TAKES_UNSIGNED:
        return True
    if node.op_type == "QuantizeLinear" and len(node.input) < 3:  # no zero point
        return not any(each.name == "output_dtype" for each in node.attribute)
    quantised = node.op_type in _READS_OR_MAKES or node.op_type.startswith(("Q", "Conv", "MatMul"))
    return quantised and any(name in unsigned for name in node.input)


def saturation_warning(
    model: Path,
    target: Target,
    flags: frozenset[str] | None = None,
    machine: str | None = None,
) -> str:
    """Return a warning if an int8 file may compute wrong sums on a processor; otherwise empty.

    Args:
        model: ONNX file.
        target: Target on which it runs.
        flags: Instruction set flags of the processor, as in `sums_saturate`.
        machine: Machine type, as in `sums_saturate`.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    if target.format != "int8" or target.device.hardware != "cpu":
        return ""
    if not sums_saturate(flags, machine) or not may_saturate(model):
        return ""
    return (
        f"{model.name} has int8 weights of 8 bits, and this processor has no VNNI instructions: "
        "sums may overflow and predictions may be wrong; quantise the network again on such a "
        "processor with `hwnas sweep`, which uses weights of 7 bits there, or run a variant in fp32"
    )
