"""Networks of ONNX files as layers that can be trained and made narrower."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.deploy import export_onnx
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.onnx.trainable import OnnxNetwork, trainable_network
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.errors import ArtifactError, ConfigError
from hwnas.search_spaces import ElasticSpace, SearchSpace, hybrid, mobilenet, resnet, vit
from hwnas.search_spaces.any_model.sources import named_elastic

SHAPE = (3, 16, 16)


class Residual(nn.Module):
    """Block with a depthwise convolution, whose last activation is behind the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2 * channels, 1)
        self.norm = nn.BatchNorm2d(2 * channels)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, 1, 1, groups=2 * channels)
        self.last = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.hardswish(self.depthwise(F.relu(self.norm(self.first(x)))))
        return F.relu(x + self.last(inner))


class Convolutions(nn.Module):
    """Network with padding at one side, residual blocks and a flattened map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2)
        self.blocks = nn.Sequential(Residual(8), Residual(8), Residual(8))
        self.fc = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.stem(F.pad(x, (0, 1, 0, 1)))))
        return self.fc(F.avg_pool2d(x, 2).flatten(1))


class Attention(nn.Module):
    """Attention over tokens, from one projection to queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, dim = x.shape
        split = self.qkv(self.norm(x)).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split.unbind(0))
        return x + self.proj(mixed.transpose(1, 2).reshape(n, tokens, dim))


class Perceptron(nn.Module):
    """Two linear layers on each token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class Transformer(nn.Module):
    """Vision transformer with a class token and position embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 17, 16))
        self.blocks = nn.Sequential(Attention(16, 4), Perceptron(16), Attention(16, 4))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.positions
        return self.head(self.blocks(tokens)[:, 0])


def randomised(network: nn.Module) -> nn.Module:
    """Give a network statistics and offsets as training does, none of them 0 or 1."""
    torch.manual_seed(0)
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if tensor.dim() == 1 and tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5) if "bias" not in name else nn.init.normal_(tensor)
    return network.eval()


def exported(network: nn.Module, path: Path, batch: int | None = None) -> Path:
    """Write a network as ONNX by PyTorch's earlier exporter, which is quick."""
    axes = {"images": {0: "n"}} if batch is None else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is deprecated
        torch.onnx.export(
            randomised(network),
            (images(batch or 2),),
            path,
            input_names=["images"],
            dynamo=False,
            dynamic_axes=axes,
        )
    return path


def images(number: int) -> Tensor:
    return torch.randn(number, *SHAPE, generator=torch.Generator().manual_seed(number))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    exported(Convolutions(), folder / "convolutions.onnx")
    exported(Transformer(), folder / "transformer.onnx")
    return folder


@pytest.mark.parametrize("name", ["convolutions", "transformer"])
def test_trainable_network_gives_the_outputs_of_the_file(name: str, folder: Path) -> None:
    path = folder / f"{name}.onnx"
    network, module = trainable_network(path), OnnxModule.load(path)
    for number in (1, 2, 5):
        with torch.no_grad():
            torch.testing.assert_close(
                network(images(number)), module(images(number)), rtol=1e-4, atol=1e-4
            )


@pytest.mark.slow
def test_trainable_network_has_the_layers_of_the_exported_one(tmp_path: Path) -> None:
    export_onnx(randomised(Convolutions()), SHAPE, tmp_path / "network.onnx")
    network = trainable_network(tmp_path / "network.onnx")
    layers = dict(network.named_modules())
    assert isinstance(layers["stem"], nn.Conv2d)
    assert isinstance(layers["blocks.1"], OnnxNetwork)  # a residual block
    assert isinstance(layers["blocks.1.depthwise"], nn.Conv2d)
    assert isinstance(layers["fc"], nn.Linear)


def test_trainable_network_learns(folder: Path) -> None:
    network = trainable_network(folder / "transformer.onnx")
    optimiser = torch.optim.AdamW(network.parameters(), 0.01)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(network(images(8)), torch.arange(8) % 5)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert all(parameter.grad is not None for parameter in network.parameters())


def space_of(path: Path) -> ElasticSpace:
    return named_elastic((16, 16, 3), 5, f"onnx:{path}", step=2, widths=(0.5, 1.0))


def test_space_of_a_file_has_widths_and_depths(folder: Path) -> None:
    space = space_of(folder / "convolutions.onnx")
    names = [choice.name for choice in space.choices]
    assert names[:2] == ["blocks.depth", "stem.width"]
    assert all(re.fullmatch(rf"blocks.{i}.\w+.width", names[2 + i]) for i in range(3))
    assert len(names) == 5
    assert space.pretrained
    assert [fixed.name for fixed in space.fixed] == ["fc"]


def test_space_of_a_transformer_has_heads_and_widths(folder: Path) -> None:
    space = space_of(folder / "transformer.onnx")
    kinds = [choice.name.rpartition(".")[2] for choice in space.choices]
    assert sorted(kinds) == ["depth", "heads", "heads", "width", "width"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutions", "transformer"])
def test_networks_of_a_space_of_a_file_can_be_exported(
    name: str, folder: Path, tmp_path: Path
) -> None:
    space = space_of(folder / f"{name}.onnx")
    for architecture in (space.smallest(), space.sample(random.Random(0))):
        network = space.build(architecture).eval()
        export_onnx(network, SHAPE, tmp_path / "small.onnx")
        found = OnnxModule.load(tmp_path / "small.onnx")(images(3))
        torch.testing.assert_close(found, network(images(3)), rtol=1e-4, atol=1e-4)


SPACES: dict[str, Callable[[], SearchSpace]] = {
    "hybrid": lambda: hybrid((16, 16, 3), 5),
    "mobilenet": lambda: mobilenet((16, 16, 3), 5, preset="tiny"),
    "resnet": lambda: resnet((16, 16, 3), 5),
    "vit": lambda: vit((16, 16, 3), 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_file_of_a_shipped_space_can_be_made_narrower(name: str, tmp_path: Path) -> None:
    made = SPACES[name]()
    architecture = made.sample(random.Random(1))
    network = randomised(made.build(architecture))
    channels, height, width = made.input_shape(architecture)
    path = tmp_path / "network.onnx"
    export_onnx(network, (channels, height, width), path, traceable=made.traceable)
    space = named_elastic((height, width, channels), 5, f"onnx:{path}", step=4)
    assert len(space.choices) >= 3
    small = space.build(space.smallest()).eval()
    assert small(torch.randn(2, channels, height, width)).shape == (2, 5)
    counts = [sum(p.numel() for p in each.parameters()) for each in (small, network)]
    assert counts[0] < counts[1]


def test_quantised_file_is_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / "convolutions.onnx"
    quantised = quantize_int8(path, tmp_path / "int8.onnx", random_batches(SHAPE, 1))
    with pytest.raises(ArtifactError, match=r"int8.onnx is quantised; give the network in floa"):
        trainable_network(quantised)


@pytest.mark.parametrize("make", [Convolutions, Transformer])
def test_file_for_one_image_is_made_trainable_for_several(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    path = exported(make(), tmp_path / "one.onnx", batch=1)
    network, module = trainable_network(path), OnnxModule.load(path)
    expected = torch.cat([module(each) for each in images(4).split(1)])
    torch.testing.assert_close(network(images(4)), expected, rtol=1e-4, atol=1e-4)


class Mixing(nn.Module):
    """Network that puts images and channels into one dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(3, -1).softmax(1).reshape(x.shape[0], -1)[:, :5]


def test_file_for_one_number_of_images_is_refused(tmp_path: Path) -> None:
    path = exported(Mixing(), tmp_path / "one.onnx", batch=1)
    with pytest.raises(ArtifactError, match=r"for one number of images|gives other outputs"):
        trainable_network(path)


@pytest.mark.parametrize(
    ("shape", "outputs", "told"),
    [
        ((32, 32, 3), 5, r"takes images of shape \(3, 16, 16\).*set data.size"),
        ((16, 16, 1), 5, r"images of \(1, 16, 16\); give images with as many channels"),
        ((16, 16, 3), 7, r"gives outputs of shape \(1, 5\) for one image; expected 7"),
    ],
)
def test_file_for_other_data_is_refused(
    shape: tuple[int, int, int], outputs: int, told: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        named_elastic(shape, outputs, f"onnx:{folder / 'convolutions.onnx'}")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"there is no ONNX file .*none.onnx"):
        named_elastic((16, 16, 3), 5, "onnx:none.onnx", folder=tmp_path)
