"""Weights of few bits, from which the runtime computes in single precision."""

from __future__ import annotations

import logging
from pathlib import Path

from hwnas.atomic import replacing
from hwnas.deploy.onnx.graph import check_graph, read_model
from hwnas.deploy.quantization.quantize import quantisation_errors

__all__ = ["has_products", "quantize_weights"]

_BLOCK = 32  # weights that share a scale
_ACCURACY = 4  # ONNX Runtime rounds the inputs of a product to int8, which its fast kernels need


def has_products(source: Path) -> bool:
    """Return whether an ONNX file has matrix products with constant weights.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    graph = read_model(source).graph
    constants = {tensor.name for tensor in graph.initializer}
    return any(n.op_type == "MatMul" and n.input[1] in constants for n in graph.node)


def quantize_weights(source: Path, to: Path, bits: int) -> Path:
    """Write a network whose matrix products have weights of few bits.

    Weights are rounded to nearest, symmetrically, with a scale for each 32 weights of an output.
    Only ONNX Runtime has the operator (``MatMulNBits``); convolutions and products with a bias in
    the same node (``Gemm``) stay as they are.

    Args:
        source: ONNX file in single precision.
        to: File to write.
        bits: Bits of a weight, 4 or 8.

    Returns:
        ``to``.

    Raises:
        ArtifactError: The network cannot be quantised.
        StorageError: ``to`` cannot be written.
    """
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    check_graph(source)
    logging.getLogger(MatMulNBitsQuantizer.__module__).setLevel(logging.WARNING)
    with quantisation_errors(source):
        quantizer = MatMulNBitsQuantizer(
            onnx.load(source),
            bits=bits,
            block_size=_BLOCK,
            is_symmetric=True,
            accuracy_level=_ACCURACY,
        )
        quantizer.process()
    with replacing(to) as temporary:
        onnx.save(quantizer.model.model, temporary)
    return to
