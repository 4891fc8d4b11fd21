from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from hwnas.deploy import Target, export_onnx
from hwnas.deploy.onnx.node_names import block_of
from hwnas.deploy.runtimes import RUNTIMES, open_session, unsupported
from hwnas.errors import ArtifactError, UnsupportedOperator

TARGETS = [
    f"{runtime.hardware[0]}-{name}-{runtime.formats[0]}-b1-t1" for name, runtime in RUNTIMES.items()
]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("stages.0.1.expand.conv/Conv", "stages.0.1.expand.conv"),
        ("/Conv", ""),
        ("", ""),
        ("Conv_12", ""),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/seq/seq.0/seq.0.0/Gemm", "seq.0.0"),
        ("/network/stages.0/stages.0.1/layers/conv/Conv", "network.stages.0.1.layers.conv"),
    ],
)
def test_block_of_finds_the_module_in_a_node_name(name: str, block: str) -> None:
    assert block_of(name) == block


class Hyperbolic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sinh(x)


@pytest.mark.slow
def test_pytorch_runtime_names_an_unsupported_operator_with_its_block(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(nn.ReLU(), Hyperbolic()))
    path = export_onnx(network, (1, 4, 4), tmp_path / "network.onnx").path
    assert unsupported(path, Target.parse("cpu-onnxruntime-fp32-b1-t1")) == []
    assert unsupported(path, Target.parse("cpu-pytorch-fp32-b1-t1")) == [("Sinh", "1.1")]
    with pytest.raises(UnsupportedOperator, match=r"cannot run in PyTorch: Sinh \(1\.1\); choose"):
        RUNTIMES["pytorch"].load(path, Target.parse("cpu-pytorch-fp32-b1-t1"))


def invented(path: Path) -> Path:
    """Write a file with an operator that no runtime supports."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "blocks.0.act/Relu"),
        helper.make_node("Nonesuch", ["r"], ["y"], "blocks.1.mix/Nonesuch"),
    ]
    sizes = [1, 4, 6, 6]
    graph = helper.make_graph(
        nodes,
        "invented",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


@pytest.mark.parametrize("target", TARGETS)
def test_runtimes_name_an_unknown_operator_with_its_block(target: str, tmp_path: Path) -> None:
    parsed = Target.parse(target)
    reason = RUNTIMES[parsed.device.runtime].unavailable(parsed.device.hardware)
    if reason is not None:
        pytest.skip(reason)
    path = invented(tmp_path / "Relu.onnx")
    assert unsupported(path, parsed) == [("Nonesuch", "blocks.1.mix")]
    with pytest.raises(UnsupportedOperator, match=r"Nonesuch \(blocks\.1\.mix\)") as raised:
        open_session(path, parsed)
    assert len(str(raised.value).splitlines()) == 1


def test_unsupported_reports_a_damaged_file_as_such(tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    path.write_bytes(b"nothing")
    for target in TARGETS[:1]:
        with pytest.raises(ArtifactError) as raised:
            unsupported(path, Target.parse(target))
        assert not isinstance(raised.value, UnsupportedOperator)
