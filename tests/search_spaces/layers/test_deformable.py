"""Deformable convolutions: the same as plain ones at first, and as ONNX's operator."""

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

from hwnas.deploy import export_onnx
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.onnx.workload import read_workload
from hwnas.errors import ConfigError
from hwnas.search_spaces import Stage, mobilenet, trace
from hwnas.search_spaces.layers.deformable import REACH, DeformableConv2d, deformed
from hwnas.search_spaces.quantised import QuantisedSpace

SPACE = mobilenet(
    (16, 16, 3),
    4,
    stages=(Stage(8, 2, (2,), operators=("k3_e1", "k3_e2_d")),),
    resolution=(16,),
    operator_weights="own",
)


def layer(channels: int = 4, stride: int = 1, seed: int = 0) -> DeformableConv2d:
    """Return a layer whose distances differ from place to place."""
    torch.manual_seed(seed)
    made = DeformableConv2d(channels, stride)
    nn.init.normal_(made.distance.weight, std=0.5)
    return made.eval()


def onnx_deform_conv(
    x: Tensor, offsets: Tensor, weight: Tensor, stride: int, groups: int
) -> Tensor:
    """Compute a deformable convolution with ONNX Runtime."""
    given = {"x": x, "weight": weight, "offsets": offsets}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, tensor.shape)
        for name, tensor in given.items()
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    pads = [weight.shape[2] // 2] * 4
    node = helper.make_node(
        "DeformConv", list(given), ["y"], group=groups, pads=pads, strides=[stride, stride]
    )
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})[0]
    return torch.from_numpy(found)


@settings(max_examples=30)
@given(
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2, 4]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_deformed_convolution_is_that_of_onnx(
    kernel: int, stride: int, groups: int, height: int, width: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 4, height, width, generator=generator)
    size = -(-height // stride), -(-width // stride)
    offsets = 3 * torch.randn(2, 2 * kernel**2, *size, generator=generator)
    weight = torch.randn(4, 4 // groups, kernel, kernel, generator=generator)
    found = deformed(x, offsets, weight, stride, groups)
    wanted = onnx_deform_conv(x, offsets, weight, stride, groups)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
def test_new_deformable_convolution_is_a_plain_one(stride: int) -> None:
    torch.manual_seed(0)
    made, x = DeformableConv2d(4, stride), torch.randn(2, 4, 7, 9)
    plain = functional.conv2d(x, made.weight, stride=stride, padding=1, groups=4)
    torch.testing.assert_close(made(x), plain, rtol=1e-4, atol=1e-5)


def test_taps_reach_no_further_than_the_line_buffer() -> None:
    made = layer()
    nn.init.constant_(made.distance.bias, 100.0)  # all taps as far as they reach
    x = torch.zeros(1, 4, 15, 15)
    x[:, :, :4] = 1  # four rows away from the row that is looked at, and more
    assert made(x)[0, :, 4 + int(REACH)].abs().max() == 0
    assert made(x)[0, :, 3 + int(REACH)].abs().max() > 0
    assert made.line_buffer_bytes(width=15) == 7 * 15 * 4
    assert made.line_buffer_bytes(width=15, bits=32) == 4 * 7 * 15 * 4


def test_distances_are_learned() -> None:
    made = layer()
    made(torch.randn(2, 4, 8, 8)).square().sum().backward()
    assert made.distance.weight.grad is not None
    assert made.distance.weight.grad.abs().max() > 0


@pytest.mark.slow
def test_exported_network_has_deform_conv_and_gives_the_same_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = SPACE.build(SPACE.largest()).eval()
    for module in network.modules():
        if isinstance(module, DeformableConv2d):
            nn.init.normal_(module.distance.weight, std=0.5)
    made = export_onnx(network, (3, 16, 16), tmp_path / "model.onnx")
    kinds = [node.op_type for node in onnx.load(made.path).graph.node]
    assert kinds.count("DeformConv") == 2
    assert "BatchNormalization" not in kinds
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(
            OnnxModule.load(made.path)(images), network(images), rtol=1e-4, atol=1e-4
        )
    read = read_workload(made.path)
    assert not read.unknown
    # A multiplication by a number counts in a file, but not in a trace.
    assert read.workload.macs == pytest.approx(trace(network, (3, 16, 16)).macs, rel=0.002)


@pytest.mark.parametrize(
    ("operators", "options", "message"),
    [
        (("k5_e2_d",), {"operator_weights": "own"}, "deformable blocks have a kernel of 3"),
        (("k3_e1", "k3_e2_d"), {}, 'set space.operator_weights = "own"'),
    ],
)
def test_deformable_blocks_are_refused_where_they_cannot_be(
    operators: tuple[str, ...], options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        mobilenet(
            (16, 16, 3), 4, stages=(Stage(8, operators=operators),), resolution=(16,), **options
        )  # type: ignore[arg-type]


def test_deformable_blocks_cannot_be_quantised() -> None:
    with pytest.raises(ConfigError, match="deformable blocks, which no runtime computes in int8"):
        QuantisedSpace(SPACE)
