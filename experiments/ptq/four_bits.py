"""Weights of four bits, simulated in an int8 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from hwnas.deploy.quantization.reused_weights import float_name
from hwnas.deploy.quantization.weighted_layers import quantised_layers

__all__ = ["LARGEST", "with_four_bit_weights"]

LARGEST = 7
"""Largest step of a weight."""


def with_four_bit_weights(quantised: Path, plain: Path) -> None:
    """Round the weights of a QDQ file to 15 levels, in place, with the scales that these need.

    Biases are restored to float32, since their scale was the product of two scales of which one
    changes.

    Args:
        quantised: File that ONNX Runtime's tools quantised, with symmetric weights.
        plain: File that it was made from.
    """
    model = onnx.load(quantised)
    exact = {each.name: each for each in onnx.load(plain).graph.initializer}
    stored = {each.name: each for each in model.graph.initializer}
    for layer in quantised_layers(model):
        weights = layer.rows(numpy_helper.to_array(exact[float_name(layer.stored)]))
        old = numpy_helper.to_array(stored[layer.scale])
        most = weights.abs().amax(2).flatten().numpy()
        scale = (most if old.size > 1 else most.max().reshape(old.shape)) / LARGEST
        scale = np.maximum(scale, np.finfo(np.float32).tiny).astype(np.float32)
        steps = (weights / layer.steps(scale)).round().clamp(-LARGEST, LARGEST)
        shape = tuple(stored[layer.stored].dims)
        _store(stored[layer.stored], layer.stored_form(steps, shape).astype(np.int8))
        _store(stored[layer.scale], scale)
    _restore_biases(model, exact)
    onnx.save(model, quantised)


def _restore_biases(model: Any, exact: dict[str, Any]) -> None:
    stored = {each.name: each for each in model.graph.initializer}
    for node in list(model.graph.node):
        if node.op_type != "DequantizeLinear" or node.input[0] not in stored:
            continue
        bias = exact.get(float_name(node.input[0]))
        if bias is not None and stored[node.input[0]].data_type == onnx.TensorProto.INT32:
            constant = model.graph.initializer.add()
            constant.CopyFrom(bias)
            constant.name = node.output[0]
            model.graph.node.remove(node)


def _store(tensor: Any, values: NDArray[Any]) -> None:
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
