"""Networks of further spaces: an exported file computes what the module does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from hwnas.deploy import export_onnx
from hwnas.deploy.onnx_workload import read_workload
from hwnas.search_spaces import (
    Architecture,
    MobileNetConfig,
    MobileNetSpace,
    ResNetConfig,
    ResNetSpace,
    ResNetStage,
    SearchSpace,
    Stage,
)

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


def _chosen(*operators: str) -> Architecture:
    names = (choice.name for choice in LAYERWISE.choices)
    return LAYERWISE.architecture(dict(zip(names, operators, strict=True)))


@pytest.mark.parametrize(
    ("space", "architecture"),
    [
        (LAYERWISE, _chosen("k3_e1_g2", "skip", "skip")),
        (LAYERWISE, _chosen("skip", "k3_e3", "k3_e1_g2")),
        (RESNET, RESNET.largest()),
    ],
    ids=["groups", "skips", "resnet"],
)
def test_the_file_computes_what_the_module_does(
    space: SearchSpace, architecture: Architecture, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = space.build(architecture).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
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
