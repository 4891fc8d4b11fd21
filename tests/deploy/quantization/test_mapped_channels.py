"""Scales and rotations of channels: where they are exact, and where they are refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.deploy import export_onnx
from hwnas.deploy.export.comparison import relative_error
from hwnas.deploy.quantization.channel_walk import mappable_channels
from hwnas.deploy.quantization.float_graph import FloatGraph
from hwnas.deploy.quantization.rotation import random_rotation, rotate
from hwnas.deploy.quantization.scale_transfer import equalise, scale_channels
from hwnas.deploy.variants.sweep import outputs_of

IMAGES = np.random.default_rng(0).standard_normal((4, 3, 8, 8), dtype=np.float32)
EXACT = 1e-5


class Bottlenecks(nn.Module):
    """Linear bottlenecks with a residual connection, a gate and pooling, as in MobileNetV3."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.activation = activation
        self.stem, self.expand = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 12, 1)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.project, self.last = nn.Conv2d(12, 6, 1), nn.Conv2d(6, 8, 3)
        self.head = nn.Linear(8 * 2 * 2, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        inner = self.activation(self.depthwise(self.activation(self.expand(x))))
        gate = self.excite(self.squeeze(inner.mean((2, 3), keepdim=True)).relu()).sigmoid()
        x = x + self.project(inner * gate)
        return self.head(nn.functional.max_pool2d(self.last(x).relu(), 2).flatten(1))


class Transformer(nn.Module):
    """One layer of a transformer with position embeddings and a residual stream."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = nn.functional.gelu) -> None:
        super().__init__()
        self.activation = activation
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.positions = nn.Parameter(torch.randn(1, 4, 8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.query, self.key, self.value, self.output = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 5)
        for norm in self.norms:
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.bias)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (2, 4)).transpose(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        y = self.norms[0](x)
        query, key, value = (self.heads(f(y)) for f in (self.query, self.key, self.value))
        scores = (query * 0.5) @ key.transpose(2, 3)
        y = (scores.softmax(3) @ value).transpose(1, 2).flatten(2)
        x = x + self.output(y)
        x = x + self.down(self.activation(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x).mean(1))


def exported(network: nn.Module, folder: Path) -> Path:
    return export_onnx(network, (3, 8, 8), folder / "plain.onnx", traceable=True).path


@pytest.fixture(scope="module", params=[Bottlenecks, Transformer])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return exported(request.param(), tmp_path_factory.mktemp("plain"))


def error(graph: FloatGraph, plain: Path) -> float:
    made = graph.write(plain.with_name("changed.onnx"))
    return relative_error(outputs_of(made, [IMAGES]), outputs_of(plain, [IMAGES]))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_any_scales_and_any_rotation_leave_the_outputs(plain: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = FloatGraph(plain, IMAGES)
    places = mappable_channels(graph, "scale")
    for mapped in places:
        scale_channels(graph, mapped, np.exp(rng.uniform(-3, 3, mapped.size)))
    assert rotate(graph, seed) >= 1
    assert error(graph, plain) < EXACT


@pytest.mark.slow
def test_equalisation_makes_the_channels_of_a_bottleneck_alike(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Bottlenecks()
    with torch.no_grad():
        network.expand.weight[0] *= 30
        network.expand.bias[0] *= 30
    graph = FloatGraph(exported(network, tmp_path), IMAGES)
    between = next(s for s in mappable_channels(graph, "scale") if s.size == 12)
    read = [name for name in between.tensors if "elu" in graph.makers[name].op_type]

    def spread() -> float:
        most = graph.values(IMAGES, read[:1])[read[0]].max((0, 2, 3))
        return float(most.max() / np.median(most))

    before = spread()
    assert equalise(graph, [IMAGES]) == 5
    assert spread() < before / 4
    assert error(graph, tmp_path / "plain.onnx") < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "scaled", "rotated"),
    [
        # the stream, three inner tensors of the block, and the last one before the head
        (Bottlenecks(), 5, 1),
        # the stream only, the squeezed tensor and the last one
        (Bottlenecks(nn.functional.hardswish), 3, 1),
        (Bottlenecks(nn.functional.relu6), 3, 1),
        # three LayerNorms, queries with keys, values; and the stream, which scales cannot pass
        (Transformer(), 5, 3),
        (Transformer(torch.relu), 6, 3),
    ],
)
def test_mappable_channels_are_found_only_where_operators_commute(
    network: nn.Module, scaled: int, rotated: int, tmp_path: Path
) -> None:
    graph = FloatGraph(exported(network, tmp_path), IMAGES)
    assert len(mappable_channels(graph, "scale")) == scaled
    assert rotate(graph) == rotated


@pytest.mark.parametrize("size", [1, 2, 6, 8, 24, 64])
@pytest.mark.parametrize("keeps_ones", [True, False])
def test_random_rotation_is_orthogonal(size: int, keeps_ones: bool) -> None:
    found = random_rotation(size, np.random.default_rng(0), keeps_ones)
    assert np.allclose(found @ found.T, np.eye(size))
    if keeps_ones:
        assert np.allclose(found @ np.ones(size), 1)
    if not keeps_ones and size in (8, 64):
        assert np.allclose(np.abs(found), size**-0.5)
