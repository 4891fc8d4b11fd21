import logging
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.deploy import Export, Preprocessing, export_onnx
from hwnas.errors import ArtifactError, ConfigError, StorageError


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_the_file_computes_what_the_module_does(
    network: nn.Module, exported: Export, preprocessing: Preprocessing, digits: NDArray[np.uint8]
) -> None:
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    images = preprocessing(digits)
    was_training = network.training
    with torch.no_grad():
        expected = network.eval()(images).numpy()
    network.train(was_training)
    for rows in (slice(0, 1), slice(None)):
        (found,) = session.run(["outputs"], {"images": images[rows].contiguous().numpy()})
        np.testing.assert_allclose(found, expected[rows], atol=1e-4 * np.abs(expected).max())
    assert 0 <= exported.max_relative_error <= 1e-4
    assert 0 <= exported.max_absolute_error <= 1e-4


def test_normalisation_is_folded_and_weights_are_inside(exported: Export) -> None:
    assert operators(exported.path)["BatchNormalization"] == 0
    assert operators(exported.path)["Conv"] > 5
    assert [file.name for file in exported.path.parent.iterdir()] == ["network.onnx"]
    assert exported.opset == onnx.load(exported.path).opset_import[0].version


def test_nothing_of_this_machine_is_in_the_file(exported: Export) -> None:
    assert str(Path(__file__).parents[2]).encode() not in exported.path.read_bytes()
    assert b"site-packages" not in exported.path.read_bytes()


def test_the_module_is_left_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    level = logging.getLogger("torch.onnx._internal.exporter._registration").level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_onnx(module, (1, 6, 6), tmp_path / "network.onnx")
    assert module.training
    assert module[2].inplace
    assert isinstance(module[1], nn.BatchNorm2d)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert logging.getLogger("torch.onnx._internal.exporter._registration").level == level
    assert capfd.readouterr() == ("", "")


class ChannelNorm(nn.LayerNorm):
    """Normalises the channels of each pixel of (N, C, H, W), which then lie last in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_pooling_of_what_has_its_channels_last_is_a_mean(tmp_path: Path) -> None:
    layers = ChannelNorm(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    export_onnx(nn.Sequential(*layers), (4, 6, 6), tmp_path / "network.onnx")
    found = operators(tmp_path / "network.onnx")
    assert found["ReduceMean"] == 1
    assert not {"Gather", "Range"} & found.keys()


class PreActivation(nn.Module):
    """Normalisation before the convolution, and an order that the children's does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.first = nn.Conv2d(1, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        return (x + self.convolution(self.norm(x).relu())).mean((2, 3))


def test_normalisation_without_a_convolution_before_it_is_right_too(tmp_path: Path) -> None:
    module = PreActivation()
    nn.init.normal_(module.norm.running_mean)
    assert export_onnx(module, (1, 6, 6), tmp_path / "n.onnx").max_relative_error < 1e-5


class Sized(nn.Module):
    """Takes batches of two only."""

    def forward(self, images: Tensor) -> Tensor:
        return images.reshape(2, -1)


class Branching(nn.Module):
    """Looks at values, which an exported graph cannot."""

    def forward(self, images: Tensor) -> Tensor:
        return images * 2 if images.sum() > 0 else images


class Careful(nn.Module):
    """Looks at values to refuse some, which the newer exporter cannot follow."""

    def forward(self, images: Tensor) -> Tensor:
        if images.isnan().any():
            raise ValueError("pixels are no numbers")
        return images.mean((2, 3))


class Unknown(nn.Module):
    """What neither exporter can do."""

    def forward(self, images: Tensor) -> Tensor:
        return images.sinh() * (1 if images.sum() > 0 else -1)


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


class NotANumber(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean((1, 2, 3), keepdim=True).flatten(1) * float("nan")


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (Sized(), ConfigError, "returns .2, 8. for 1 images"),
        (nn.Conv2d(3, 4, 1), ConfigError, "Conv2d does not take inputs"),
        (Pair(), ConfigError, "returns tuple; expected one tensor"),
        (
            Branching(),
            ArtifactError,
            r"cannot export Branching .*\. With the older exporter, the ONNX file of",
        ),
        (
            Unknown(),
            ArtifactError,
            "cannot export Unknown: .* Its older exporter fails, too: .*sinh",
        ),
        (NotANumber(), ArtifactError, "differs from PyTorch by nan"),
    ],
)
def test_modules_that_cannot_be_exported(
    tmp_path: Path,
    module: nn.Module,
    error: type[Exception],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(error, match=message) as raised:
        export_onnx(module, (1, 4, 4), tmp_path / "network.onnx")
    assert len(str(raised.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_what_dynamo_cannot_export_the_older_exporter_may(
    tmp_path: Path, exported: Export, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exported.exporter == "dynamo"
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Careful())
    made = export_onnx(network, (1, 6, 6), tmp_path / "network.onnx")
    assert made.to_json()["exporter"] == "torchscript"
    assert made.max_relative_error <= 1e-4
    assert made.batches == exported.batches - 4, "of real images and of pixels"
    assert b"site-packages" not in made.path.read_bytes()
    assert capfd.readouterr() == ("", "")


def test_nodes_are_called_after_the_modules_they_come_from(
    exported: Export, network: nn.Module
) -> None:
    names = [node.name for node in onnx.load(exported.path).graph.node]
    assert len(set(names)) == len(names)
    modules = dict(network.named_modules())
    assert {name.rpartition("/")[0] for name in names} <= modules.keys()
    assert "stem.conv/Conv" in names


def test_examples_must_fit(network: nn.Module, tmp_path: Path) -> None:
    for examples in (torch.zeros(2, 1, 9, 9), torch.zeros(0, 1, 8, 8)):
        with pytest.raises(ConfigError, match="examples have shape"):
            export_onnx(network, (1, 8, 8), tmp_path / "network.onnx", examples)


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        export_onnx(nn.Conv2d(1, 1, 1), (1, 4, 4), tmp_path / "file" / "network.onnx")
