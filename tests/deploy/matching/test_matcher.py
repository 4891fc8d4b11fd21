"""Matched networks of all spaces give the outputs of their files."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from triton import knobs

from hwnas.deploy import export_onnx
from hwnas.deploy.matching import Graph, MatchedNetwork, OperatorCall, matched
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.kernels.operator import Operator, Sizes
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.search_spaces import (
    MobileNetConfig,
    MobileNetSpace,
    SearchSpace,
    Stage,
    channels,
    hybrid,
    nasbench201,
    resnet,
    simplenet,
    vit,
)

from .graphs import CPU

DIGITS = (8, 8, 1), 10
BOTTLENECKS = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, expand_ratio=(1,)),
            Stage(16, 2, kernel_size=(5,), expand_ratio=(2,), squeeze_excite=True),
        ),
        resolution=(8,),
        in_channels=1,
        stem_channels=8,
        head_channels=16,
        feature_channels=16,
        outputs=10,
    )
)
SPACES: dict[str, Callable[[], SearchSpace]] = {
    "channels": partial(channels, *DIGITS, model="resnet20", ratios=(0.25, 0.5)),
    "hybrid": partial(hybrid, *DIGITS),
    "mobilenet": lambda: BOTTLENECKS,
    "nasbench201": partial(nasbench201, *DIGITS, channels=4, cells=1),
    "resnet": partial(resnet, *DIGITS),
    "simplenet": partial(simplenet, *DIGITS),
    "vit": partial(vit, *DIGITS),
}
EXPECTED = {
    "hybrid": {"slim_attention": 2, "inverted_bottleneck": 3, "depthwise": 2}
    | {"pointwise": 8, "convolution": 2, "chain": 1},
    "mobilenet": {"inverted_bottleneck": 1, "depthwise_pointwise": 1, "pointwise": 3}
    | {"convolution": 1, "chain": 1},
    "resnet": {"convolution": 7, "pointwise": 10, "chain": 1},
    "vit": {"norm_linear": 2, "attention": 1, "pointwise": 4, "depthwise": 1, "chain": 1},
}
IN_INT8 = {
    "mobilenet": {"int8_convolution": 1, "int8_pointwise": 8, "int8_depthwise": 2, "chain": 5},
    "resnet": {"int8_convolution": 7, "int8_pointwise": 10, "chain": 2},
    "vit": {"int8_pointwise": 8, "int8_depthwise": 1, "chain": 6},
}
LEFT_IN_INT8 = {"vit": {"MatMul", "Rounded", "Softmax", "Windows"}}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3}


def exported(space: SearchSpace, seed: int, path: Path) -> OnnxModule:
    """Export a random network, with batch normalisations like those of a trained one."""
    architecture = space.sample(random.Random(seed))
    torch.manual_seed(0)
    network = space.build(architecture).eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, std=0.2)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
    export_onnx(network, space.input_shape(architecture), path, traceable=space.traceable)
    return OnnxModule.load(path).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def small(folder: Path) -> Callable[[str], OnnxModule]:
    """Function that exports one network of a space, once."""
    return functools.cache(lambda name: exported(SPACES[name](), 1, folder / f"{name}.onnx"))


def operators(graph: Graph) -> Counter[str]:
    """Count the calls of each operator; every generated chain is counted as chain."""
    names = [step.operator.name for step in graph.steps if isinstance(step, OperatorCall)]
    return Counter("chain" if name.startswith("fused_") else name for name in names)


def difference(source: OnnxModule, network: MatchedNetwork, batch: int = 1) -> float:
    """Return the largest difference from the file, relative to its largest output."""
    images = torch.randn(batch, *source.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = source(images)
        return float((network(images) - expected).abs().max() / expected.abs().max())


def without_interpreter(
    source: OnnxModule, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> MatchedNetwork:
    """Match the network as on a machine with neither a GPU nor Triton's interpreter."""
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.warns(RuntimeWarning, match="no kernels for tensors on 'cpu'; PyTorch computes"):
        return MatchedNetwork(matched(source, 2, dtype), dtype, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_matched_network_gives_the_outputs_of_the_file(
    name: str, small: Callable[[str], OnnxModule]
) -> None:
    source = small(name)
    network = MatchedNetwork(matched(source, 1, torch.float32), torch.float32, CPU)
    assert network.chosen
    assert difference(source, network) < TOLERANCE[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_matcher_finds_the_expected_operators(
    name: str, small: Callable[[str], OnnxModule]
) -> None:
    graph = matched(small(name), 1, torch.float16)
    assert operators(graph) == EXPECTED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_INT8)
def test_matched_int8_network_gives_the_outputs_of_the_file(
    name: str, small: Callable[[str], OnnxModule], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = random_batches(small(name).input_shape, 2)
    path = quantize_int8(folder / f"{name}.onnx", folder / f"{name}-int8.onnx", batches)
    source = OnnxModule.load(path).eval()
    network = without_interpreter(source, torch.float32, monkeypatch)
    assert operators(matched(source, 2, torch.float16)) == IN_INT8[name]
    left = {kind for kind, _ in network.left}
    assert left == {"DequantizeLinear"} | LEFT_IN_INT8.get(name, set())
    # One int8 step is about 0.01. In transformers, a bias is added before sums are rounded.
    assert difference(source, network, 2) < (0.08 if name == "vit" else 0.004)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_matched_network_without_kernels_uses_pytorch_and_warns(
    name: str,
    dtype: torch.dtype,
    small: Callable[[str], OnnxModule],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = without_interpreter(small(name), dtype, monkeypatch)
    assert "PyTorch computes all operators" in network.note
    assert difference(small(name), network, 2) < TOLERANCE[dtype]


def test_matched_network_uses_pytorch_where_kernels_are_slower(
    small: Callable[[str], OnnxModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> KernelChoice:
        return KernelChoice({}, False, "measured")

    monkeypatch.setattr(Operator, "run", None)
    source = small("vit")
    network = MatchedNetwork(matched(source, 1, torch.float32), torch.float32, CPU, slower)
    assert not network.counts
    assert network.left["attention", "its kernel was not measured to be faster"] == 1
    assert difference(source, network) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 5)),
    ],
)
@pytest.mark.parametrize("name", SPACES)
def test_matched_networks_agree_for_many_architectures(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = exported(SPACES[name](), seed, tmp_path / "network.onnx")
    for dtype, tolerance in TOLERANCE.items():
        network = without_interpreter(source, dtype, monkeypatch)
        assert difference(source, network, 2) < tolerance
    batches = random_batches(source.input_shape, 2)
    path = quantize_int8(tmp_path / "network.onnx", tmp_path / "int8.onnx", batches)
    source = OnnxModule.load(path).eval()
    network = without_interpreter(source, torch.float16, monkeypatch)
    assert difference(source, network, 2) < 0.1
