"""Small classifiers that are fine-tuned in tests, their graphs and images."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.deploy.finetuning.joint_graph import JointGraph, trace_network

SHAPE = (3, 8, 8)
CLASSES = 4


class Convolutional(nn.Module):
    """Residual network with a depthwise convolution and a squeeze-excite gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.expand = nn.Conv2d(8, 16, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.project = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.stem(images))
        inner = F.hardswish(self.expand(x))
        inner = torch.clamp(self.depthwise(inner), 0, 6)
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(inner.mean((2, 3), keepdim=True)))))
        x = x + self.project(inner * gate)
        return self.head(x.mean((2, 3)))


class Plain(nn.Module):
    """Chain of convolutions with rectifiers and pooling, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.three = nn.Linear(8 * 4 * 4, 16)
        self.four = nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.two(F.relu(self.one(images))))
        return self.four(F.relu(self.three(F.max_pool2d(x, 2).flatten(1))))


class Attention(nn.Module):
    """One block of attention over patches, with position embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, 2)
        self.positions = nn.Parameter(torch.randn(1, 16, 8))
        self.norm = nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        query, key, value = self.qkv(self.norm(tokens)).chunk(3, 2)
        mixed = (query @ key.transpose(1, 2) / 8**0.5).softmax(2) @ value
        return self.head((tokens + self.out(mixed)).mean(1))


class Mixed(nn.Module):
    """Layers of further kinds: normalisations, groups, a transposed convolution, slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.grouped, self.slopes = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.PReLU(8)
        self.up, self.groups = nn.ConvTranspose2d(8, 4, 2, 2), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 4 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.stem(images)))
        x = F.silu(self.groups(self.up(self.slopes(self.grouped(x)))))
        return self.head(F.avg_pool2d(F.gelu(x), 2).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutional": Convolutional,
    "plain": Plain,
    "attention": Attention,
    "mixed": Mixed,
}


def made(name: str) -> nn.Module:
    """Return a network with the same random weights each time."""
    torch.manual_seed(0)
    return NETWORKS[name]().eval()


@cache
def graph_of(name: str, batch: int = 3) -> JointGraph:
    """Return the joint graph of a network; it does not depend on weights."""
    return trace_network(made(name), SHAPE, batch)


def batch_of(count: int) -> tuple[Tensor, Tensor]:
    """Return images and classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, *SHAPE, generator=generator)
    return images, torch.randint(CLASSES, (count,), generator=generator)
