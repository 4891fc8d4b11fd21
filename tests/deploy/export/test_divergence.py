"""The error for a network that computes something else in its exported file names the layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hwnas.deploy import export_onnx
from hwnas.deploy.export.divergence import Divergence
from hwnas.errors import ArtifactError


def exporting() -> bool:
    return torch.compiler.is_exporting()


class Twofold(nn.Module):
    """Module that doubles its input, but only in an exported file."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if exporting() else x


class Block(nn.Module):
    """Block with two branches; ``wrong`` names the part that differs in the exported file."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.depthwise = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4))
        self.act = nn.Sequential(nn.ReLU(), Twofold() if wrong == "act" else nn.Identity())
        self.beside = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x)
        if self.wrong == "between" and exporting():
            y = y + 1
        y = self.act(y) + self.beside(x)
        return y * 3 if self.wrong == "after" and exporting() else y


class Network(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.ModuleList([Block(), Block(wrong), Block()])
        self.head = nn.Linear(4, 3)
        self.wrong = wrong

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3))
        return self.head(x.abs() if self.wrong == "network" and exporting() else x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("act", r"blocks\.1\.act\.1 \(Mul\)"),
        ("between", r"the operations of blocks\.1 outside its modules \(Add\)"),
        ("after", r"the operations of blocks\.1 outside its modules \(Mul\)"),
        ("network", r"the operations of the network itself outside its modules \(Abs\)"),
    ],
)
def test_export_names_the_first_layer_that_differs(wrong: str, place: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(
        ArtifactError, match=rf"It first differs in {place}, by [0-9.]+ of the tensor's"
    ):
        export_onnx(Network(wrong), (1, 6, 6), tmp_path / "network.onnx")
    assert list(tmp_path.iterdir()) == []


class OnlyFew(nn.Module):
    """Module whose exported file is right only for the batch size of the trace."""

    def forward(self, images: Tensor) -> Tensor:
        if images.isnan().any():  # only the older exporter, which traces one run, can export this
            raise ValueError("no numbers")
        return images.flatten(1) * float(len(images))


@pytest.mark.slow
def test_export_finds_a_batch_size_that_became_a_constant(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.ReLU(), OnlyFew()))
    with pytest.raises(ArtifactError, match=r"1 at once.* It first differs in 1\.1 \(Mul\)"):
        export_onnx(network, (1, 4, 4), tmp_path / "network.onnx")


def test_divergence_names_layer_operator_and_difference() -> None:
    assert (
        str(Divergence("a.b", "Conv", 0.25)) == "a.b (Conv), by 0.25 of the tensor's largest value"
    )
