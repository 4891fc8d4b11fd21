"""Networks in int8 as programs for the compilers of phones."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from hwnas.deploy.export.comparison import relative_error
from hwnas.deploy.onnx.integer_program import EXECUTORCH, LITERT, ProgramStyle, integer_program
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.quantization.quantize import random_batches


@pytest.mark.parametrize("style", [EXECUTORCH, LITERT], ids=["executorch", "litert"])
def test_program_computes_the_same_and_has_all_layers_in_int8(
    int8_file: Path, style: ProgramStyle
) -> None:
    plain = OnnxModule.load(int8_file).eval().frozen(2)
    program = integer_program(plain, style)
    images = torch.from_numpy(random_batches(plain.input_shape, 2)[0])
    with torch.no_grad():
        found, expected = program(images), plain(images)
    assert relative_error(found.numpy(), expected.numpy()) < 0.02

    graph = onnx.load(int8_file).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    weights = {
        node.output[0]
        for node in graph.node
        if node.op_type == "DequantizeLinear"
        and constants.get(node.input[0], onnx.TensorProto()).data_type == onnx.TensorProto.INT8
    }
    kinds = ("Conv", "Gemm", "MatMul")
    layers = [n for n in graph.node if n.op_type in kinds and weights & set(n.input)]
    calls = [
        str(node.target)
        for node in torch.export.export(program, (images,)).graph.nodes
        if node.op == "call_function"
    ]
    assert layers
    read = [
        call for call in calls if call.startswith("quantized_decomposed.dequantize_per_channel")
    ]
    assert len(read) == len(layers)
    rounded = [
        call for call in calls if call.startswith("quantized_decomposed.quantize_per_tensor")
    ]
    assert len(rounded) == sum(node.op_type == "QuantizeLinear" for node in graph.node)


def test_layers_whose_inputs_are_not_rounded_get_float_weights(int8_file: Path) -> None:
    """The last layer is given its inputs without rounding, as a network of mixed precision."""
    model = onnx.load(int8_file)
    graph = model.graph
    made = {node.output[0]: node for node in graph.node}
    last = [node for node in graph.node if node.op_type in ("Gemm", "MatMul")][-1]
    rounding = made[made[last.input[0]].input[0]]
    last.input[0] = rounding.input[0]
    onnx.save(model, int8_file)
    plain = OnnxModule.load(int8_file).eval().frozen(2)
    program = integer_program(plain)
    images = torch.from_numpy(random_batches(plain.input_shape, 2)[0])
    with torch.no_grad():
        found, expected = program(images), plain(images)
    assert relative_error(found.numpy(), expected.numpy()) < 0.02
