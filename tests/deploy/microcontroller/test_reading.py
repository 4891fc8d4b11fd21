"""Integer networks of whole ONNX files, beside ONNX Runtime's results for the same files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from hwnas.deploy import Export, export_onnx
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.microcontroller.axes import IntegerPermutation
from hwnas.deploy.microcontroller.c_source import CSource
from hwnas.deploy.microcontroller.compiled import compiled_session, missing_c_compiler
from hwnas.deploy.microcontroller.network import IntegerNetwork
from hwnas.deploy.microcontroller.normalisation import IntegerGroupNorm
from hwnas.deploy.microcontroller.reading import read_integer_network
from hwnas.deploy.quantization.quantize import Int8Quantizer, quantize_int8
from hwnas.deploy.runtimes.onnx import OnnxSession
from hwnas.errors import ArtifactError, UnsupportedOperator
from hwnas.search_spaces import SearchSpace, hiera, hybrid, mobilenet, resnet, simplenet, vit

SPACES: dict[str, Callable[[], SearchSpace]] = {
    "mobilenet": lambda: mobilenet((32, 32, 3), 5),
    "mobilenet, squeeze-and-excite": lambda: mobilenet((64, 64, 3), 5),
    "resnet": lambda: resnet((32, 32, 3), 5),
    "simplenet": lambda: simplenet((32, 32, 3), 5),
    "vit": lambda: vit((32, 32, 3), 5),
    "mcuformer": lambda: vit((64, 64, 3), 5, preset="mcuformer"),
    "hiera": lambda: hiera((32, 32, 3), 5),
    "hybrid": lambda: hybrid((32, 32, 3), 5, preset="tiny"),
}
FURTHER = ("mcuformer", "simplenet")
"""Those whose operators the others have, too."""


def compared(
    model: Path, preprocessing: Preprocessing, pixels: NDArray[np.uint8]
) -> tuple[IntegerNetwork, float]:
    """Return a network, and its largest difference from ONNX Runtime in steps of the output."""
    network = read_integer_network(model, preprocessing)
    session = OnnxSession(model, batch=1, threads=1, optimised=False)
    expected = session.run(preprocessing(pixels).contiguous().numpy())
    difference = np.abs(network.real(network.run(pixels)) - expected).max()
    return network, float(difference / network.tensors[network.output].scale)


def test_network_gives_the_outputs_of_onnx_runtime(
    int8: Path, preprocessing: Preprocessing, digits: NDArray[np.uint8]
) -> None:
    network, difference = compared(int8, preprocessing, digits)
    assert network.output_shape == (10,)
    assert difference <= 1.01


def checked(
    network: nn.Module, input_shape: tuple[int, int, int], folder: Path, steps: float
) -> IntegerNetwork:
    """Compare a network with ONNX Runtime, and its C code with the integer network."""
    channels, height, width = input_shape
    how = Preprocessing(height, width, channels, (0.5,) * channels, (0.25,) * channels)
    pixels = np.random.default_rng(0).integers(0, 256, (6, height, width, channels), np.uint8)
    path = folder / "network.onnx"
    export_onnx(network.eval(), how.input_shape, path, how(pixels), how)
    images = how(pixels).contiguous().numpy()
    model = quantize_int8(path, folder / "int8.onnx", [images])
    found, difference = compared(model, how, pixels)
    assert difference <= steps
    for by_rows in (False, True) if missing_c_compiler() is None else ():
        source = CSource.of(found, "network", (), by_rows)
        (folder / "network.c").write_text(source.code)
        (folder / "network.h").write_text(source.header)
        in_c = compiled_session(folder / "network.c").run(pixels)  # type: ignore[arg-type]
        np.testing.assert_array_equal(in_c, found.real(found.run(pixels)))
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in FURTHER else pytest.mark.slow)
        for name in SPACES
    ],
)
def test_networks_of_all_families_give_the_outputs_of_onnx_runtime(
    name: str, tmp_path: Path
) -> None:
    """A rounding that falls the other way is one step, which later layers may enlarge."""
    torch.manual_seed(0)
    space = SPACES[name]()
    architecture = space.sample(random.Random(1))
    attends = name in ("vit", "mcuformer", "hiera", "hybrid")
    shape = space.input_shape(architecture)
    checked(space.build(architecture), shape, tmp_path, 8 if attends else 2.01)


class Normalised(nn.Module):
    """Map that is normalised by group, with channels that are normalised together."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(groups, 6)
        nn.init.uniform_(self.norm.weight, 0.5, 2)
        nn.init.normal_(self.norm.bias)
        self.grow = nn.ConvTranspose2d(6, 4, 4, 2, 1)
        self.outputs = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.grow(x + torch.relu(self.norm(x)))[:, :, :19, :23]
        outputs: torch.Tensor = self.outputs(torch.relu(x).mean((2, 3)))
        return outputs


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_group_normalisation_and_transposed_convolution_are_read(
    groups: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    found = checked(Normalised(groups), (3, 20, 24), tmp_path, 2.01)
    copies = [each for each in found.steps if isinstance(each.operator, IntegerPermutation)]
    normalised = [each for each in found.steps if isinstance(each.operator, IntegerGroupNorm)]
    assert len(normalised) == 1
    assert len(copies) == (2 if groups == 1 else 4)  # a slice is a copy


class Fire(nn.Module):
    """Branches side by side, pooled in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.point = nn.Conv2d(6, 8, 1)
        self.wide = nn.Conv2d(6, 8, 3, padding=1)
        self.outputs = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze(x))
        x = torch.cat([torch.relu(self.point(x)), torch.sigmoid(self.wide(x))], 1)
        x = nn.functional.max_pool2d(x, 3, 2) + nn.functional.avg_pool2d(x, 3, 2)
        outputs: torch.Tensor = self.outputs(x.mean((2, 3)))
        return outputs


@pytest.mark.slow
def test_branches_of_a_network_are_put_side_by_side(tmp_path: Path) -> None:
    torch.manual_seed(0)
    checked(Fire(), (3, 20, 24), tmp_path, 2.01)


def test_layer_in_floating_point_is_named(
    exported: Export, preprocessing: Preprocessing, digits: NDArray[np.uint8], tmp_path: Path
) -> None:
    images = preprocessing(digits).contiguous().numpy()
    with Int8Quantizer(exported.path, [images], ["full"]) as quantizer:
        layers = [unit for unit in quantizer.units if "/" in unit.name]
        partial = quantizer.write(tmp_path / "partial.onnx", without=layers[-1:])
    with pytest.raises(ArtifactError, match=r"layer classifier\S* is not quantised"):
        read_integer_network(partial, preprocessing)


def test_unknown_operator_is_named(preprocessing: Preprocessing, tmp_path: Path) -> None:
    floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 1, 8, 8]) for n in "xy"]
    node = helper.make_node("Sinh", ["x"], ["y"], name="stem/Sinh")
    graph = helper.make_graph([node], "odd", floats[:1], floats[1:])
    path = tmp_path / "odd.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(UnsupportedOperator, match=r"no integer version of Sinh \(stem\)"):
        read_integer_network(path, preprocessing)


def test_bias_beside_weights_near_zero_is_kept(tmp_path: Path) -> None:
    """Its steps would need more than 32 bits."""
    how = Preprocessing(1, 1, 1, (0.0,), (1.0,))
    arrays = {
        "w": np.array([[[[1]]]], np.int8),
        "b": np.array([2**31 - 1], np.int32),
        "w_scale": np.array([1e-12], np.float32),
        "b_scale": np.array([1e-12 / 255 * 1e6], np.float32),
        "in": np.array(1 / 255, np.float32),
        "out": np.array(1e-8, np.float32),
        "zero": np.array(0, np.uint8),
        "zeros": np.zeros(1, np.int8),
        "long": np.zeros(1, np.int32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "in", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "in", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zeros"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "b_scale", "long"], ["bd"], axis=0),
        helper.make_node("Conv", ["d", "wd", "bd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "out", "zero"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "out", "zero"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 1, 1, 1]) for n in "xy"]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "near zero", ends[:1], ends[1:], tensors)
    path = tmp_path / "near_zero.onnx"
    opset = [helper.make_opsetid("", 20)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    )
    network = read_integer_network(path, how)
    found = network.real(network.run(np.full((1, 1, 1, 1), 200, np.uint8)))
    bias = (2**31 - 1) * 1e-12 / 255 * 1e6
    assert found.item() == pytest.approx(min(bias, 255e-8), rel=0.01)
