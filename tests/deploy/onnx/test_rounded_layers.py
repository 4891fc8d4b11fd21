"""Networks in int8 as networks in single precision and the rounding of their layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from hwnas.deploy import Target, export_onnx
from hwnas.deploy.export.comparison import relative_error
from hwnas.deploy.onnx.rounded_layers import rounded_layers
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.deploy.runtimes import open_session
from hwnas.errors import ArtifactError

KINDS = ("Conv", "Gemm", "MatMul")
INT8, FP32 = (Target.parse(f"cpu-onnxruntime-{kind}-b1-t1") for kind in ("int8", "fp32"))


class Residual(nn.Module):
    """Sum of two convolutions with a ReLU that the quantiser leaves out, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.last = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        joined = (self.left(images).relu() + self.right(images)).relu()
        outputs: Tensor = self.last(joined.mean((2, 3)))
        return outputs


@pytest.fixture
def residual(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    export_onnx(Residual().eval(), (3, 8, 8), tmp_path / "model.onnx")
    batches = random_batches((3, 8, 8), 8)
    return quantize_int8(tmp_path / "model.onnx", tmp_path / "model.int8.onnx", batches)


def outputs(path: Path, target: Target) -> np.ndarray:
    session = open_session(path, target)
    return session.run(random_batches(session.input_shape, 4)[0])


def test_network_has_no_rounding_and_nearly_the_same_outputs(
    int8_file: Path, tmp_path: Path
) -> None:
    model, layers = rounded_layers(int8_file)
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(kinds)
    stored = {tensor.name for tensor in model.graph.initializer}
    weighted = [
        node for node in model.graph.node if node.op_type in KINDS and node.input[1] in stored
    ]
    assert len(layers) == len(weighted)
    onnx.save(model, tmp_path / "plain.onnx")
    found = outputs(tmp_path / "plain.onnx", FP32)
    assert relative_error(found, outputs(int8_file, INT8)) < 0.05


def test_grids_name_tensors_and_weights_are_multiples_of_their_step(int8_file: Path) -> None:
    model, layers = rounded_layers(int8_file)
    tensors = {name for node in model.graph.node for name in (*node.input, *node.output)}
    readers = {node.input[0]: node for node in model.graph.node if node.op_type in KINDS}
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    for layer in layers:
        assert {layer.inputs.name, *(grid.name for grid in layer.outputs)} <= tensors
        assert layer.inputs.name in readers
        assert all(-128 <= grid.zero <= 127 for grid in (layer.inputs, *layer.outputs))
    [last] = [node for node in model.graph.node if node.op_type in KINDS][-1:]
    values = weights[last.input[1]]
    steps = values / np.array(layers[-1].weights).reshape((-1, 1) if len(values) == 5 else (1, -1))
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert 100 < np.abs(steps).max() < 127.5


def test_relus_that_the_quantiser_leaves_out_are_back(residual: Path, tmp_path: Path) -> None:
    assert not {"Relu", "Clip"} & {node.op_type for node in onnx.load(residual).graph.node}
    model, layers = rounded_layers(residual)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Relu") == kinds.count("Clip") == 1
    assert [len(layer.outputs) for layer in layers] == [2, 1, 1]  # before and after the ReLU
    onnx.save(model, tmp_path / "plain.onnx")
    found = outputs(tmp_path / "plain.onnx", FP32)
    assert relative_error(found, outputs(residual, INT8)) < 0.03


def test_layer_whose_input_is_not_rounded_is_none_of_them(residual: Path) -> None:
    model = onnx.load(residual)
    made = {node.output[0]: node for node in model.graph.node}
    [last] = [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    last.input[0] = made[made[last.input[0]].input[0]].input[0]
    onnx.save(model, residual)
    _, layers = rounded_layers(residual)
    assert len(layers) == 2


def test_constants_may_be_nodes(residual: Path) -> None:
    """Files of other quantisers have nodes that give scales and weights."""
    expected, layers = rounded_layers(residual)
    model = onnx.load(residual)
    graph = model.graph
    nodes = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in graph.initializer
    ]
    nodes += graph.node
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, residual)
    found, same = rounded_layers(residual)
    assert same == layers
    assert [node.op_type for node in found.graph.node] == [
        node.op_type for node in expected.graph.node
    ]
    assert len(found.graph.initializer) == len(expected.graph.initializer)


def test_damaged_file_is_refused_in_one_line(residual: Path) -> None:
    residual.write_bytes(residual.read_bytes()[:500])
    with pytest.raises(ArtifactError, match=residual.name) as told:
        rounded_layers(residual)
    assert "\n" not in str(told.value)
