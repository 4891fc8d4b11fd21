"""Reference model for drift correction: a small fixed network, timed along with all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_reference_model"]

_SIDE = 48
_CONVOLUTIONS = (
    (16, 3, 2, False),
    (16, 3, 1, True),
    (48, 1, 1, False),
    (48, 3, 2, True),
    (64, 1, 1, False),
    (64, 5, 1, True),
)
"""Output channels, kernel size, stride and whether the convolution is depthwise."""
_OPSET, _IR_VERSION = 17, 8
"""Fixed, old versions, so that every runtime gets the same file, now and later."""


def write_reference_model(path: Path) -> None:
    """Write the reference model as ONNX: 1.5 million MACs in six convolutions and a linear layer.

    Its weights are values of a cosine, since a library may change the stream of its random
    generator.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:]))
        values = np.cos(1.7 * np.arange(np.prod(shape)) + len(weights)) * np.sqrt(4 / fan_in)
        weights.append(numpy_helper.from_array(values.reshape(shape).astype(np.float32), name))
        return name

    nodes, current, channels = [], "images", 3
    for i, (width, kernel, stride, depthwise) in enumerate(_CONVOLUTIONS):
        groups = channels if depthwise else 1
        kernel_name = weight(f"weight{i}", width, channels // groups, kernel, kernel)
        convolution = helper.make_node(
            "Conv",
            [current, kernel_name],
            [f"conv{i}"],
            group=groups,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )
        nodes += [convolution, helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"])]
        current, channels = f"relu{i}", width
    nodes += [
        helper.make_node("GlobalAveragePool", [current], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("Gemm", ["features", weight("linear", channels, 10)], ["outputs"]),
    ]
    graph = helper.make_graph(
        nodes,
        "anchor",  # the name of earlier versions, so that the file stays the same
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, _SIDE, _SIDE])],
        [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    opset = helper.make_opsetid("", _OPSET)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION), path)
