"""Int8 quantisation of files with unusual names."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.quantization.ranges import RANGES
from hwnas.deploy.variants.sweep import outputs_of


@pytest.fixture
def shared_bias(tmp_path: Path) -> Path:
    """Two convolutions with one bias, whose name and a digit are the name of their tensor."""
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((4, 4, 3, 3), dtype=np.float32)
    bias = rng.standard_normal(4, dtype=np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "kernel", "bias"], ["first"], pads=[1] * 4),
        helper.make_node("Flatten", ["first"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["bias0"]),
        helper.make_node("Conv", ["bias0", "kernel", "bias"], ["outputs"], pads=[1] * 4),
    ]
    tensors = {"kernel": kernel, "bias": bias, "shape": np.array([-1, 4, 6, 6])}
    graph = helper.make_graph(
        nodes,
        "shared",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [2, 4, 6, 6])],
        [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, [2, 4, 6, 6])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    path = tmp_path / "shared.onnx"
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def test_bias_of_two_layers_is_quantised_for_each(shared_bias: Path, tmp_path: Path) -> None:
    batch = np.random.default_rng(1).standard_normal((2, 4, 6, 6), dtype=np.float32)
    quantised = quantize_int8(shared_bias, tmp_path / "int8.onnx", [batch])
    expected = outputs_of(shared_bias, [batch])
    error = np.abs(outputs_of(quantised, [batch]) - expected).max()
    assert error < 0.02 * np.abs(expected).max()


def test_weights_in_another_file_are_quantised(shared_bias: Path, tmp_path: Path) -> None:
    batch = np.random.default_rng(1).standard_normal((2, 4, 6, 6), dtype=np.float32)
    expected = outputs_of(quantize_int8(shared_bias, tmp_path / "whole.onnx", [batch]), [batch])
    apart = tmp_path / "apart" / "network.onnx"
    apart.parent.mkdir()
    external = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 100}
    onnx.save_model(onnx.load(shared_bias), apart, **external)
    found = quantize_int8(apart, tmp_path / "int8.onnx", [batch])
    np.testing.assert_array_equal(outputs_of(found, [batch]), expected)


@pytest.mark.parametrize("smallest_weight", [1.0, 1e-9], ids=["usual", "large-bias"])
def test_file_does_not_depend_on_the_order_of_the_range_methods(
    shared_bias: Path, tmp_path: Path, smallest_weight: float
) -> None:
    model = onnx.load(shared_bias)
    kernel = next(tensor for tensor in model.graph.initializer if tensor.name == "kernel")
    values = numpy_helper.to_array(kernel).copy()
    values[0] *= smallest_weight  # a channel whose bias is a huge number of its weight's steps
    kernel.CopyFrom(numpy_helper.from_array(values, "kernel"))
    onnx.save(model, shared_bias)
    batch = np.random.default_rng(1).standard_normal((2, 4, 6, 6), dtype=np.float32)
    names = list(RANGES)
    files = [
        quantize_int8(shared_bias, tmp_path / f"{order[0]}.onnx", [batch], order)
        for order in (names, names[::-1], [*names[1:], names[0]])
    ]
    contents = [
        {t.name: numpy_helper.to_array(t).tolist() for t in onnx.load(file).graph.initializer}
        for file in files
    ]
    assert contents[0] == contents[1] == contents[2]
    expected = outputs_of(shared_bias, [batch])
    error = np.abs(outputs_of(files[0], [batch]) - expected).max()
    assert error < 0.02 * np.abs(expected).max()
