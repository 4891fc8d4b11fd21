"""Quantised weights of one file in another, so that they are computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

__all__ = ["float_name", "has_large_biases", "reuse_weights"]

_LARGE = 2**30


def float_name(stored: str) -> str:
    """Return the name that a quantised constant had in the file before quantisation."""
    from onnxruntime.quantization.quant_utils import TENSOR_NAME_QUANT_SUFFIX

    return stored.removesuffix(TENSOR_NAME_QUANT_SUFFIX)


def reuse_weights(prepared: Path, quantised: Path, to: Path) -> Path:
    """Write a network in floating point, but with the weights of its quantised file.

    ONNX Runtime's quantiser keeps quantised weights, which take most of its time, and adds all
    else. What it makes of ``to`` is what it makes of ``prepared``, unless `has_large_biases`.

    Args:
        prepared: Network in floating point.
        quantised: File that the quantiser made of it, in QDQ format.
        to: File to write.

    Returns:
        ``to``.
    """
    import onnx

    network, source = onnx.load(prepared), onnx.load(quantised).graph
    tensors = {tensor.name: tensor for tensor in source.initializer}
    weights = [
        node
        for node in source.node
        if node.op_type == "DequantizeLinear"
        and node.input[0] in tensors
        and tensors[node.input[0]].data_type != onnx.TensorProto.INT32  # that of biases
    ]
    dequantised = {float_name(node.input[0]): node.output[0] for node in weights}
    others = [tensor for tensor in network.graph.initializer if tensor.name not in dequantised]
    nodes = list(network.graph.node)
    for node in nodes:
        node.input[:] = [dequantised.get(name, name) for name in node.input]
    del network.graph.initializer[:], network.graph.node[:]
    network.graph.initializer.extend(others)
    network.graph.initializer.extend(tensors[name] for node in weights for name in node.input)
    network.graph.node.extend([*weights, *nodes])
    onnx.save(network, to)
    return to


def has_large_biases(quantised: Path) -> bool:
    """Return whether a bias needs nearly all of 32 bits.

    ONNX Runtime's quantiser makes the steps of a weight larger where those of its bias, which also
    depend on the range of the inputs, would be too small. Then weights cannot be reused.
    """
    import onnx

    return any(
        tensor.data_type == onnx.TensorProto.INT32
        and (np.abs(onnx.numpy_helper.to_array(tensor).astype(np.int64)) >= _LARGE).any()
        for tensor in onnx.load(quantised).graph.initializer
    )
