from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from hwnas.deploy import Export, export_onnx
from hwnas.deploy.onnx.workload import read_workload
from hwnas.errors import ArtifactError
from hwnas.search_spaces import MobileNetSpace, trace


@pytest.mark.parametrize("batch", [1, 3])
def test_workload_of_a_file_equals_that_of_its_module(
    exported: Export, space: MobileNetSpace, batch: int
) -> None:
    found = read_workload(exported.path, batch)
    traced = space.workload(space.smallest(), batch)
    assert not found.unknown
    assert found.workload.macs == traced.macs
    ours, theirs = found.workload.counts(), traced.counts()
    for kind in ("conv", "pointwise", "depthwise", "linear"):
        assert ours[kind] == theirs[kind]
    assert found.workload.peak_activation_bytes == pytest.approx(
        traced.peak_activation_bytes, rel=0.25
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        return ((q @ k.transpose(1, 2)).softmax(-1) @ v).mean(1)


@pytest.mark.slow
def test_workload_counts_the_matrix_products_of_attention(tmp_path: Path) -> None:
    export_onnx(Attention(), (3, 16, 16), tmp_path / "vit.onnx")
    found = read_workload(tmp_path / "vit.onnx").workload
    assert found.macs == trace(Attention(), (3, 16, 16)).macs


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_workload_counts_both_products_of_every_step_of_a_recurrent_layer(
    tmp_path: Path, operator: str, gates: int, direction: str
) -> None:
    steps, batch, inputs, channels = 5, 2, 4, 6
    directions = 1 + (direction == "bidirectional")
    weights = [
        onnx.numpy_helper.from_array(np.zeros((directions, gates * channels, each), "f4"), name)
        for name, each in (("w", inputs), ("r", channels))
    ]
    node = helper.make_node(
        operator, ["x", "w", "r"], ["y", "last"], hidden_size=channels, direction=direction
    )
    made = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, inputs])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "last")],
        weights,
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(made, opset_imports=[opset], ir_version=8), tmp_path / "one.onnx")
    found = read_workload(tmp_path / "one.onnx")
    each = gates * channels * (inputs + channels)
    assert found.workload.macs == directions * steps * batch * each
    assert not found.unknown


def graph(path: Path, operator: str, sizes: list[object], domain: str = "") -> Path:
    made = helper.make_graph(
        [
            helper.make_node(operator, ["x"], ["y"], domain=domain),
            helper.make_node("Relu", ["x"], ["z"]),
        ],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [
            helper.make_tensor_value_info("z", TensorProto.FLOAT, sizes),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    return path


def test_workload_names_unknown_operators(tmp_path: Path) -> None:
    found = read_workload(graph(tmp_path / "one.onnx", "Sinh", ["n", 3, 8, 8]))
    assert dict(found.unknown) == {"Sinh": 1}
    (operator,) = [each for each in found.workload.operators if each.kind == "other"]
    assert found.workload.bytes_moved(operator) == 2 * 4 * 3 * 64


def test_workload_assumes_equal_input_and_output_for_custom_operators(tmp_path: Path) -> None:
    path = graph(tmp_path / "one.onnx", "Sparkle", ["n", 3, 8, 8], domain="my.own")
    found = read_workload(path)
    assert dict(found.unknown) == {"Sparkle": 1}
    assert found.workload.bytes_moved(found.workload.operators[-1]) == 2 * 4 * 3 * 64


def test_workload_refuses_operators_with_outputs_of_unknown_size(tmp_path: Path) -> None:
    path = graph(tmp_path / "one.onnx", "NonZero", ["n", 3, 8, 8])
    with pytest.raises(ArtifactError, match="the size of 'y' depends on"):
        read_workload(path)


def test_workload_requires_dynamic_input_sizes(tmp_path: Path) -> None:
    path = graph(tmp_path / "open.onnx", "Relu", ["n", 3, "height", 8])
    with pytest.raises(ArtifactError, match=r"size 2 of input x is dynamic \(height\)"):
        read_workload(path)
    with pytest.raises(ArtifactError, match="size 1 of input x is 3, not 4"):
        read_workload(path, 1, (4, 9, 8))
    with pytest.raises(ArtifactError, match="3 sizes besides the batch, but 2 were given: 9x8"):
        read_workload(path, 1, (9, 8))
    tensors = read_workload(path, 2, (3, 9, 8)).workload.tensors
    assert {math.prod(tensor.shape) for tensor in tensors} == {2 * 3 * 9 * 8}


def test_workload_refuses_files_that_are_not_onnx(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no ONNX file"):
        read_workload(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ArtifactError, match=r"text\.onnx is not an ONNX file"):
        read_workload(tmp_path / "text.onnx")
