"""Exported files of networks of all spaces give the outputs of their PyTorch modules."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from hwnas.deploy import RUNTIMES, Target, export_onnx
from hwnas.deploy.export.comparison import check_batches
from hwnas.deploy.export.quantisers import without_quantisers
from hwnas.deploy.export.to_onnx import export_traced, relative_error
from hwnas.deploy.onnx.workload import read_workload
from hwnas.deploy.runtimes import open_session
from hwnas.search_spaces import SPACES as SHIPPED
from hwnas.search_spaces import (
    Architecture,
    MobileNetConfig,
    MobileNetSpace,
    ResNetConfig,
    ResNetSpace,
    ResNetStage,
    SearchSpace,
    Stage,
    channels,
    decoder,
    edsr,
    elastic,
    experts,
    hiera,
    hybrid,
    mobilenet,
    nasbench201,
    resnet,
    simplenet,
    union,
    vit,
)
from hwnas.search_spaces.early_exit.space import early_exit
from hwnas.search_spaces.quantised.space import quantised

LAYERWISE = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, 1, (2,), operators=("skip", "k3_e1_g2", "k3_e3"), activation="relu6"),
            Stage(16, 2, operators=("skip", "k3_e1_g2", "k3_e3")),
        ),
        resolution=(8,),
        head_channels=16,
        feature_channels=16,
        stem_channels=8,
        outputs=3,
        activation="relu6",
        feature_bias=False,
    )
)
RESNET = ResNetSpace(
    ResNetConfig(
        stages=(ResNetStage(16, depth=(2,), expand_ratio=(0.5,)), ResNetStage(32, 2)),
        resolution=(16,),
        outputs=3,
        stem_channels=8,
    )
)


def small_model() -> nn.Module:
    """Return a module like one that a user may bring."""
    down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.GELU())
    stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(stem, down, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


DIGITS = (8, 8, 1), 10
SPACES: dict[str, Callable[[], SearchSpace]] = {
    "channels": partial(channels, *DIGITS, model="resnet20", ratios=(0.5, 1)),
    "decoder": partial(decoder, (1, 16, 1), 10, preset="tiny"),
    "early-exit": partial(early_exit, *DIGITS, network={"name": "resnet"}),
    "edsr": partial(edsr, *DIGITS, preset="mixed"),
    "elastic": lambda: elastic(small_model(), torch.zeros(2, 1, 8, 8)),
    "experts": partial(experts, *DIGITS, expert_every=1, tasks={"kind": 7, "turn": 3}),
    "hiera": partial(hiera, *DIGITS),
    "hybrid": partial(hybrid, *DIGITS),
    "mobilenet": partial(mobilenet, *DIGITS),
    "nasbench201": partial(nasbench201, *DIGITS, channels=4, cells=1),
    "quantised": partial(quantised, *DIGITS, network={"name": "resnet"}),
    "resnet": partial(resnet, *DIGITS),
    "simplenet": partial(simplenet, *DIGITS),
    "union": partial(union, (16, 16, 1), 10, "cpu", resolution=(16,)),
    "vit": partial(vit, *DIGITS),
}
"""Every space that hwnas ships, at the size of handwritten digits."""
TRACED = ("channels", "early-exit", "edsr", "mobilenet", "resnet", "simplenet", "union")
"""Spaces for whose networks tracing gives the same operators."""
COUNTS = [pytest.param(1, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.exhaustive)]
"""Numbers of networks; each takes some seconds."""


def _unlike_new(network: nn.Module) -> nn.Module:
    """Give batch normalisations statistics that change the outputs."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return network.eval()


def _operators(path: Path) -> Counter[str]:
    found = Counter(node.op_type for node in onnx.load(path).graph.node)
    del found["Constant"]
    return found


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", SHIPPED)
def test_export_is_exact_for_random_networks_of_every_space(
    name: str, count: int, tmp_path: Path
) -> None:
    """Tracing gives the same operators for all networks of some spaces, but not of others."""
    if name == "elastic" and find_spec("torch_pruning") is None:
        pytest.skip("torch_pruning is not installed")
    space, rng, alike = SPACES[name](), random.Random(0), set()
    for _ in range(count):
        architecture = space.sample(rng)
        torch.manual_seed(0)
        network = _unlike_new(space.build(architecture))
        shape = space.input_shape(architecture)
        made = export_onnx(network, shape, tmp_path / "network.onnx")
        assert made.max_relative_error < 1e-4, architecture.to_json()
        assert made.exporter == "dynamo"
        assert made.batches + len(made.inconclusive) == len(check_batches(shape))
        export_traced(network, shape, tmp_path / "traced.onnx")
        alike.add(_operators(tmp_path / "traced.onnx") == _operators(made.path))
    assert (alike == {True}) == (name in TRACED)
    assert not space.traceable or alike == {True}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_mnn_runs_networks_of_every_space(name: str, tmp_path: Path) -> None:
    if reason := RUNTIMES["mnn"].unavailable():
        pytest.skip(reason)
    space = SPACES[name]()
    architecture = space.sample(random.Random(1))
    torch.manual_seed(0)
    network = _unlike_new(space.build(architecture))
    without_quantisers(network)  # the file in single precision rounds no activations
    shape = space.input_shape(architecture)
    traceable = space.traceable
    path = export_onnx(network, shape, tmp_path / "network.onnx", traceable=traceable).path
    images = torch.randn(3, *shape)
    found = open_session(path, Target.parse("cpu-mnn-fp32-b1-t1")).run(images.numpy())
    with torch.no_grad():
        assert relative_error(found, network(images).numpy()) < 1e-3  # MNN sums in another order


def _chosen(*operators: str) -> Architecture:
    names = (choice.name for choice in LAYERWISE.choices)
    return LAYERWISE.architecture(dict(zip(names, operators, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "architecture"),
    [
        (LAYERWISE, _chosen("k3_e1_g2", "skip", "skip")),
        (LAYERWISE, _chosen("skip", "k3_e3", "k3_e1_g2")),
        (RESNET, RESNET.largest()),
    ],
    ids=["groups", "skips", "resnet"],
)
def test_exported_file_gives_the_outputs_and_macs_of_the_network(
    space: SearchSpace, architecture: Architecture, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = _unlike_new(space.build(architecture))
    shape = space.input_shape(architecture)
    images = torch.randn(3, *shape)
    exported = export_onnx(network, shape, tmp_path / "network.onnx", images)
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["outputs"], {"images": images.numpy()})
    with torch.no_grad():
        expected = network(images).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    kinds = Counter(node.op_type for node in onnx.load(exported.path).graph.node)
    assert kinds["BatchNormalization"] == 0
    read = read_workload(exported.path, 1)
    assert not read.unknown
    assert read.workload.macs == space.workload(architecture).macs
