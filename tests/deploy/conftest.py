"""One small real network, exported and packed once for all tests of this folder."""

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    Export,
    OutputMeaning,
    Preprocessing,
    export_onnx,
    write_bundle,
)
from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.deploy.runtimes.ort_web_files import RuntimeFiles, runtime_files
from hwnas.errors import HwnasError
from hwnas.search_spaces import MobileNetSpace, SearchSpace, hybrid, mobilenet, resnet, vit

DIGITS = tuple("0123456789")
_OF_FAMILIES = {
    "mobilenet": mobilenet((16, 16, 3), 5, preset="tiny"),
    "resnet": resnet((16, 16, 3), 5, preset="tiny"),
    "vit": vit((16, 16, 3), 5, preset="tiny"),
    "hybrid": hybrid((16, 16, 3), 5, preset="tiny"),
}


def pytest_configure(config: pytest.Config) -> None:
    """Run kernels in Triton's interpreter unless the tests with the marker gpu are selected.

    Triton reads the variable when kernels are defined, so it is set before tests are imported.
    """
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def space() -> MobileNetSpace:
    return mobilenet((8, 8, 1), 10)


@pytest.fixture(scope="session")
def network(space: MobileNetSpace) -> nn.Module:
    """Smallest network of the space, with batch normalisations like those of a trained one."""
    torch.manual_seed(0)
    made = space.build(space.smallest())
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.bias, std=0.2)
    return made


@pytest.fixture(scope="session")
def digits() -> NDArray[np.uint8]:
    """Real images: uint8 (40, 8, 8, 1)."""
    return (load_digits().images[:40, :, :, None] * 15.9375).astype(np.uint8)


@pytest.fixture(scope="session")
def preprocessing() -> Preprocessing:
    return Preprocessing(8, 8, 1, mean=(0.3,), std=(0.38,))


@pytest.fixture(scope="session")
def exported(
    network: nn.Module,
    preprocessing: Preprocessing,
    digits: NDArray[np.uint8],
    tmp_path_factory: pytest.TempPathFactory,
) -> Export:
    path = tmp_path_factory.mktemp("export") / "network.onnx"
    shape = preprocessing.input_shape
    return export_onnx(network, shape, path, preprocessing(digits), preprocessing)


@pytest.fixture(scope="session")
def int8(
    exported: Export,
    preprocessing: Preprocessing,
    digits: NDArray[np.uint8],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The network quantised to int8, as an ONNX file."""
    images = preprocessing(digits).contiguous().numpy()
    return quantize_int8(exported.path, tmp_path_factory.mktemp("int8") / "int8.onnx", [images])


@pytest.fixture(scope="session")
def measurement() -> Measurement:
    return Measurement(
        target="cpu-onnxruntime-fp32-b1-t1",
        clock="cpu",
        cpu_ms=Quantiles(0.9, 1.0, 1.1),
        wall_ms=Quantiles(1.2, 1.4, 1.9),
        n=50,
        contended=True,
        anchor_ms=0.05,
        hardware="a processor",
        versions={"onnxruntime": "1.2.3"},
        settings={"graph_optimization_level": "ORT_ENABLE_ALL"},
        time="2026-01-01T00:00:00+00:00",
    )


@pytest.fixture(scope="session")
def to_pack(
    space: MobileNetSpace,
    network: nn.Module,
    exported: Export,
    preprocessing: Preprocessing,
    digits: NDArray[np.uint8],
) -> BundleNetwork:
    return BundleNetwork(
        space.smallest(),
        exported,
        network.state_dict(),
        preprocessing,
        OutputMeaning("class_scores", DIGITS),
        digits[:5],
    )


@pytest.fixture(scope="session")
def facts(measurement: Measurement) -> BundleFacts:
    accuracy = {"name": "accuracy", "value": 0.97, "kind": "evaluated", "unit": "fraction"}
    return BundleFacts(
        space="mobilenet",
        task="classification",
        provenance={"recipe": "digits | <b>", "seed": 0, "hardware": {"cores": "2"}},
        metrics=[{**accuracy, "standard_error": 0.01, "n": 360, "split": "test"}],
        measurements=[measurement],
        predictions=[{"name": "latency", "value": 1.1, "kind": "predicted", "unit": "ms"}],
    )


@pytest.fixture(scope="session")
def packed(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    return write_bundle(tmp_path_factory.mktemp("bundles") / "digits", to_pack, facts)


@pytest.fixture(scope="session")
def ort_web(tmp_path_factory: pytest.TempPathFactory) -> RuntimeFiles:
    """Files of ONNX Runtime Web, fetched by npm, or those in the folder of ``HWNAS_ORT_WEB``."""
    given = os.environ.get("HWNAS_ORT_WEB")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HWNAS_HOME", str(tmp_path_factory.mktemp("npm")))
            patch.setattr("hwnas.deploy.runtimes.ort_web_files._FETCH_S", 60)
            return runtime_files(Path(given) if given else None)
    except HwnasError as error:
        pytest.skip(f"ONNX Runtime Web cannot be had: {error}")


@pytest.fixture
def folder(packed: Bundle, tmp_path: Path) -> Path:
    """Copy of the bundle, which a test may damage."""
    return Path(shutil.copytree(packed.folder, tmp_path / "bundle"))


@pytest.fixture(scope="session", params=_OF_FAMILIES)
def of_family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a random network of a family, in single precision and in int8."""
    space: SearchSpace = _OF_FAMILIES[request.param]
    architecture = space.sample(random.Random(3))
    torch.manual_seed(0)
    network, shape = space.build(architecture).eval(), space.input_shape(architecture)
    folder = tmp_path_factory.mktemp(request.param)
    source = export_onnx(network, shape, folder / "model.onnx", traceable=space.traceable).path
    quantize_int8(source, folder / "model.int8.onnx", random_batches(shape, 8))
    return folder


@pytest.fixture
def int8_file(of_family: Path, tmp_path: Path) -> Path:
    """File in int8 of a random network of a family, beside the one in single precision."""
    return Path(shutil.copytree(of_family, tmp_path / "family")) / "model.int8.onnx"
