"""Files of which only the inputs of layers are rounded."""

from __future__ import annotations

from pathlib import Path

__all__ = ["round_only_for_layers"]

_READ_INTEGERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "QuantizeLinear")


def round_only_for_layers(model: Path) -> None:
    """Let only layers with weights read rounded tensors in a file in QDQ format, in place.

    Inputs of one bit are signs, made by comparisons. Rounding a value moves it to the other side of
    a threshold near it, and so turns its sign. The networks were trained without such rounding.
    """
    import onnx

    loaded = onnx.load(model)
    nodes = loaded.graph.node
    made_by = {name: node for node in nodes for name in node.output}
    for node in nodes:
        if node.op_type in _READ_INTEGERS:
            continue
        for place, name in enumerate(node.input):
            back = made_by.get(name)
            if back is not None and back.op_type == "DequantizeLinear":
                rounding = made_by.get(back.input[0])
                if rounding is not None and rounding.op_type == "QuantizeLinear":
                    node.input[place] = rounding.input[0]
    onnx.save(loaded, model)
