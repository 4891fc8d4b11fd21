from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

from hwnas.deploy import export_onnx
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.onnx.operators import OPERATORS
from hwnas.errors import ArtifactError, UnsupportedOperator
from hwnas.search_spaces import vit


class Attention(nn.Module):
    """Network with the operators of a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(tokens)).chunk(3, dim=-1)
        mixed = (q @ k.transpose(1, 2) / 4).softmax(-1) @ v
        return self.head(F.gelu(tokens + mixed).mean(1))


class Pieces(nn.Module):
    """Network with pooling, concatenation and many activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.wide = nn.Conv2d(8, 8, 5, padding=2, groups=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.norm(self.first(x)))
        y = F.leaky_relu(F.max_pool2d(x, 2)) + F.avg_pool2d(torch.tanh(x), 2)
        z = F.hardsigmoid(self.wide(y)) * F.elu(y) + F.relu6(y)
        return torch.cat([y, torch.sigmoid(z)[:, 2:6]], 1).mean((2, 3))


def merging() -> nn.Module:
    """Return a network that sorts and gathers."""
    space = vit((16, 16, 3), 5, preset="tiny", merging=(0.25,))
    return space.build(space.smallest())


@pytest.mark.slow
@pytest.mark.parametrize("make", [Attention, Pieces, merging])
def test_onnx_module_gives_the_outputs_of_the_exported_network(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = make().eval()
    path = tmp_path / "network.onnx"
    export_onnx(network, (3, 16, 16), path)
    module = OnnxModule.load(path).eval()
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(module(images), network(images), atol=1e-5, rtol=1e-4)
        assert torch.equal(module.frozen(batch=3)(images), module(images))
    assert module.input_shape == (3, 16, 16)


class Sizes(nn.Module):
    """Network that reshapes by the sizes of its input, as files of other frameworks do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        return x.reshape(n, c * h, w).transpose(1, 2).reshape(n, w * c, -1)[:, : c + 1]


def test_frozen_module_can_be_exported_by_torch_without_size_operations(tmp_path: Path) -> None:
    """All sizes are constants, so a compiler sees only operations on pixels and weights."""
    path = tmp_path / "sizes.onnx"
    images = torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecated exporter writes size operations
        torch.onnx.export(
            Sizes(), (images,), path, dynamo=False, dynamic_axes={"x": {0: "n"}}, input_names=["x"]
        )
    assert {"Shape", "Gather"} <= {node.op_type for node in onnx.load(path).graph.node}
    frozen = OnnxModule.load(path).frozen(batch=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(frozen, (images,))
    kinds = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten._local_scalar_dense.default not in kinds
    assert not any(buffer.dtype == torch.int64 for buffer in frozen.buffers())
    torch.testing.assert_close(program.module()(images), Sizes()(images))


def one_node(
    path: Path, operator: str, constants: dict[str, np.ndarray], **attributes: object
) -> Path:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *constants], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


CASES: dict[str, tuple[str, dict[str, np.ndarray], dict[str, object]]] = {
    "uneven padding": ("Conv", {"w": floats(2, 4, 3, 3)}, {"pads": [0, 1, 2, 0]}),
    "deformable convolution": (
        "DeformConv",
        {"w": floats(4, 2, 3, 3), "o": 2 * floats(2, 18, 6, 6), "b": floats(4)},
        {"pads": [1, 1, 1, 1], "group": 2},
    ),
    "deformable convolution with groups of offsets": (
        "DeformConv",
        {
            "w": floats(2, 4, 2, 3),
            "o": floats(2, 24, 3, 2),
            "b": floats(2),
            "m": np.abs(floats(2, 12, 3, 2)),
        },
        {
            "pads": [0, 1, 1, 0],
            "strides": [2, 2],
            "dilations": [1, 2],
            "offset_group": 2,
            "kernel_shape": [2, 3],
        },
    ),
    "dilation": (
        "Conv",
        {"w": floats(2, 2, 3, 3), "b": floats(2)},
        {"dilations": [2, 2], "group": 2},
    ),
    "pool": ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "pool with padding counted": (
        "AveragePool",
        {},
        {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "global pool": ("GlobalAveragePool", {}, {}),
    "hard sigmoid": ("HardSigmoid", {}, {"alpha": 0.3}),
    "clip": ("Clip", {"low": np.float32(-0.5), "high": np.float32(0.5)}, {}),
    "slice": ("Slice", {"s": ints(1, 0), "e": ints(3, 99), "a": ints(1, 3), "t": ints(1, 2)}, {}),
    "reshape": ("Reshape", {"s": ints(0, 2, -1)}, {}),
    "squeeze": ("ReduceMean", {"a": ints(2, 3)}, {"keepdims": 0}),
    "largest": ("ReduceMax", {"a": ints(2, 3)}, {"keepdims": 0}),
    "pool of a part": ("MaxPool", {}, {"kernel_shape": [4, 4], "strides": [4, 4], "ceil_mode": 1}),
    "gather": ("Gather", {"i": ints(2, 0)}, {"axis": 1}),
    "transpose": ("Transpose", {}, {"perm": [0, 2, 3, 1]}),
    "unsqueeze": ("Unsqueeze", {"a": ints(1)}, {}),
    "transposed convolution": (
        "ConvTranspose",
        {"w": floats(4, 3, 3, 3), "b": floats(3)},
        {"strides": [2, 2], "pads": [1, 1, 0, 1], "output_padding": [0, 1]},
    ),
    "grouped transposed convolution": ("ConvTranspose", {"w": floats(4, 1, 2, 2)}, {"group": 2}),
    "normalisation of instances": (
        "InstanceNormalization",
        {"s": floats(4), "b": floats(4)},
        {"epsilon": 0.1},
    ),
    "expand": ("Expand", {"s": ints(2, 1, 6, 1)}, {}),
    "power": ("Pow", {"p": np.float32(2)}, {}),
    "sum": ("ReduceSum", {"a": ints(1)}, {}),
    "least": ("ReduceMin", {}, {}),
    "gather elements": ("GatherElements", {"i": np.int64([[[[3, 0]]], [[[1, 1]]]])}, {"axis": 3}),
    "global largest": ("GlobalMaxPool", {}, {}),
    "larger of two": ("Max", {"other": np.float32(0.1)}, {}),
    "smallest of three": ("Min", {"other": floats(4, 1, 6), "third": np.float32(0)}, {}),
    "slope of each channel": ("PRelu", {"slope": floats(4, 1, 1)}, {}),
    "padding with a value": ("Pad", {"p": ints(0, 0, 1, 2, 0, 1, 0, 3), "v": np.float32(2)}, {}),
    "padding of an axis": ("Pad", {"p": ints(2, 1), "v": np.float32(0), "a": ints(-1)}, {}),
    "reflection": ("Pad", {"p": ints(0, 0, 0, 2, 0, 0, 0, 1)}, {"mode": "reflect"}),
    "repeated edge": ("Pad", {"p": ints(0, 0, 1, 0, 0, 0, 2, 0)}, {"mode": "edge"}),
    "nothing padded": ("Pad", {"p": ints(0, 0, 0, 0, 0, 0, 0, 0)}, {}),
    "reversed": ("Slice", {"s": ints(-1), "e": ints(-99), "a": ints(1), "t": ints(-2)}, {}),
    "log softmax": ("LogSoftmax", {}, {"axis": 1}),
    "depth to space by columns": ("DepthToSpace", {}, {"blocksize": 2, "mode": "CRD"}),
    "depth to space by depth": ("DepthToSpace", {}, {"blocksize": 2}),
    "repeated pixels": (
        "Resize",
        {"r": floats(0), "s": np.float32([1, 1, 2, 3])},
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "nearest pixels": (
        "Resize",
        {"r": floats(0), "s": floats(0), "z": ints(2, 4, 9, 4)},
        {"nearest_mode": "round_prefer_ceil"},
    ),
    "bilinear": ("Resize", {"r": floats(0), "s": np.float32([1, 1, 2, 0.5])}, {"mode": "linear"}),
    "bilinear between corners": (
        "Resize",
        {"r": floats(0), "s": floats(0), "z": ints(2, 4, 11, 8)},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "bicubic": ("Resize", {"r": floats(0), "s": np.float32([1, 1, 2, 2])}, {"mode": "cubic"}),
    **{
        each: (each, {}, {})
        for each in ("Abs", "Exp", "Mish", "Neg", "Reciprocal", "Round", "Softplus")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_onnx_module_operators_agree_with_onnx_runtime(case: str, tmp_path: Path) -> None:
    operator, constants, attributes = CASES[case]
    path = tmp_path / "one.onnx"
    one_node(path, operator, constants, **attributes)
    images = floats(2, 4, 6, 6)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": images})[0]
    module = OnnxModule.load(path)
    for found in (module, module.frozen(batch=2)):
        outputs = found(torch.from_numpy(images)).detach().numpy()
        np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_onnx_module_refuses_a_resize_that_pytorch_does_not_have(tmp_path: Path) -> None:
    factors = {"r": floats(0), "s": np.float32([1, 1, 2, 2])}
    path = one_node(tmp_path / "one.onnx", "Resize", factors, nearest_mode="ceil")
    module = OnnxModule.load(path)
    with pytest.raises(ArtifactError, match="Resize in the mode nearest, half_pixel, ceil is not"):
        module(torch.zeros(1, 4, 6, 6))


def test_onnx_module_names_an_unsupported_operator(tmp_path: Path) -> None:
    path = one_node(tmp_path / "one.onnx", "Sinh", {})
    assert "Sinh" not in OPERATORS
    with pytest.raises(
        UnsupportedOperator, match=r"one\.onnx has operators .* run in PyTorch: Sinh;"
    ):
        OnnxModule.load(path)
