"""`hwnas kernels match`, on a machine without a GPU."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tests.conftest import Answer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a layer with 2:4 sparsity and an activation that no operator computes."""
    torch.manual_seed(0)
    weight = torch.randn(64, 32) * (torch.arange(64) % 4 < 2)[:, None]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Softplus", ["a"], ["y"]),
        ],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight.numpy(), "w")],
    )
    opset = helper.make_opsetid("", 20)
    path = tmp_path / "layer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has measurements of its own")
def test_match_command_lists_operators_and_what_pytorch_computes(
    hwnas: Callable[..., Answer], model: Path
) -> None:
    shown = hwnas("kernels", "match", model)
    assert shown.status == 0, shown
    assert "two_four" in shown.out
    assert "1 Softplus in PyTorch: there is no operator for it" in shown.out
    told = hwnas("kernels", "match", model, "--target", "cuda-triton-fp32-b2-t1", "--json")
    [call] = json.loads(told.out)["calls"]
    assert call["operator"] == "pointwise"  # in fp32, padding is multiplied longer than it is read
    assert call["alternative"] == "two_four is not predicted to be faster"
    assert call["sizes"]["images"] == 2


def test_match_command_refuses_other_targets_and_files(
    hwnas: Callable[..., Answer], model: Path
) -> None:
    target = "cpu-onnxruntime-fp32-b1-t1"
    hwnas("kernels", "match", model, "--target", target).refused(
        f"{target} does not use these kernels", "cuda-triton-fp16-b1-t1"
    )
    hwnas("kernels", "match", model.with_name("no.onnx")).refused("no.onnx")
    hwnas("kernels", "match", model, "--target", "cuda-triton-int8-b1-t1").refused(
        "layer.onnx is not quantised"
    )
