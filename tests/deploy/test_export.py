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
from hwnas.deploy.export.to_onnx import export_traced, traces_alike
from hwnas.errors import ArtifactError, ConfigError, StorageError


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_exported_file_gives_the_outputs_of_the_module(
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


def test_export_folds_normalisation_and_stores_weights_inside_the_file(exported: Export) -> None:
    assert operators(exported.path)["BatchNormalization"] == 0
    assert operators(exported.path)["Conv"] > 5
    assert [file.name for file in exported.path.parent.iterdir()] == ["network.onnx"]
    assert exported.opset == onnx.load(exported.path).opset_import[0].version


def test_exported_file_contains_no_local_paths(exported: Export) -> None:
    assert str(Path(__file__).parents[2]).encode() not in exported.path.read_bytes()
    assert b"site-packages" not in exported.path.read_bytes()


@pytest.mark.slow
def test_export_leaves_the_module_unchanged_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    """LayerNorm over the channels of (N, C, H, W), which then lie last in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.slow
def test_export_writes_pooling_of_channels_last_tensors_as_a_mean(tmp_path: Path) -> None:
    layers = ChannelNorm(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    export_onnx(nn.Sequential(*layers), (4, 6, 6), tmp_path / "network.onnx")
    found = operators(tmp_path / "network.onnx")
    assert found["ReduceMean"] == 1
    assert not {"Gather", "Range"} & found.keys()


class PreActivation(nn.Module):
    """Normalisation before a convolution, called in another order than the modules are defined."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.first = nn.Conv2d(1, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        return (x + self.convolution(self.norm(x).relu())).mean((2, 3))


@pytest.mark.slow
def test_export_is_exact_for_normalisation_before_a_convolution(tmp_path: Path) -> None:
    module = PreActivation()
    nn.init.normal_(module.norm.running_mean)
    assert export_onnx(module, (1, 6, 6), tmp_path / "n.onnx").max_relative_error < 1e-5


class Sized(nn.Module):
    """Module that takes only batches of two images."""

    def forward(self, images: Tensor) -> Tensor:
        return images.reshape(2, -1)


class Branching(nn.Module):
    """Module that branches on values, which an exported graph cannot do."""

    def forward(self, images: Tensor) -> Tensor:
        return images * 2 if images.sum() > 0 else images


class Careful(nn.Module):
    """Module that refuses some values, which the newer exporter cannot follow."""

    def forward(self, images: Tensor) -> Tensor:
        if images.isnan().any():
            raise ValueError("pixels are no numbers")
        return images.mean((2, 3))


class Unknown(nn.Module):
    """Module that neither exporter can export."""

    def forward(self, images: Tensor) -> Tensor:
        return images.sinh() * (1 if images.sum() > 0 else -1)


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


class NotANumber(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean((1, 2, 3), keepdim=True).flatten(1) * float("nan")


@pytest.mark.slow
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
def test_export_refuses_modules_that_it_cannot_export(
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


@pytest.mark.slow
def test_export_falls_back_to_the_older_exporter(
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


@pytest.mark.slow
def test_traced_file_gives_the_outputs_of_the_module(
    network: nn.Module, exported: Export, preprocessing: Preprocessing, digits: NDArray[np.uint8],
    tmp_path: Path,
) -> None:  # fmt: skip
    traced, images = tmp_path / "traced.onnx", preprocessing(digits).contiguous().numpy()
    assert traces_alike(network, preprocessing.input_shape)
    export_traced(network, preprocessing.input_shape, traced)
    expected, found = (
        onnxruntime.InferenceSession(path).run(["outputs"], {"images": images})[0]
        for path in (exported.path, traced)
    )
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_traceable_module_is_traced_into_the_same_operators_and_names(
    network: nn.Module, exported: Export, preprocessing: Preprocessing, tmp_path: Path
) -> None:
    shape, path = preprocessing.input_shape, tmp_path / "network.onnx"
    made = export_onnx(network, shape, path, preprocessing=preprocessing, traceable=True)
    assert (exported.exporter, made.exporter) == ("dynamo", "torchscript")
    assert made.max_relative_error <= 1e-4
    assert operators(made.path) == operators(exported.path)
    check_names(made.path, network)


class OtherwiseTraced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x.flatten(1) if torch.jit.is_tracing() else x.flatten(1)


class Untraceable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_tracing():
            raise RuntimeError("no tracing")
        return x.flatten(1)


@pytest.mark.slow
@pytest.mark.parametrize("module", [OtherwiseTraced(), Untraceable()])
def test_program_is_read_if_a_trace_fails_or_computes_other_outputs(
    module: nn.Module, tmp_path: Path
) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), module)
    made = export_onnx(network, (1, 4, 4), tmp_path / "network.onnx", traceable=True)
    assert made.exporter == "dynamo"


@pytest.mark.slow
@pytest.mark.parametrize("module", [nn.Unflatten(1, (1, -1)), Unknown(), nn.Flatten()])
def test_modules_that_trace_differently_are_noticed(module: nn.Module) -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 1), module)
    assert not traces_alike(network, (1, 4, 4))


def test_exported_nodes_are_named_after_their_modules(exported: Export, network: nn.Module) -> None:
    check_names(exported.path, network)


def check_names(path: Path, network: nn.Module) -> None:
    names = [node.name for node in onnx.load(path).graph.node]
    assert len(set(names)) == len(names)
    modules = dict(network.named_modules())
    assert {name.rpartition("/")[0] for name in names} <= modules.keys()
    assert "stem.conv/Conv" in names


def test_export_refuses_examples_of_wrong_shape(network: nn.Module, tmp_path: Path) -> None:
    for examples in (torch.zeros(2, 1, 9, 9), torch.zeros(0, 1, 8, 8)):
        with pytest.raises(ConfigError, match="examples have shape"):
            export_onnx(network, (1, 8, 8), tmp_path / "network.onnx", examples)


def test_export_reports_an_unwritable_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        export_onnx(nn.Conv2d(1, 1, 1), (1, 4, 4), tmp_path / "file" / "network.onnx")
