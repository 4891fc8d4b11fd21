"""TensorRT engines, with a program in place of TensorRT, which needs a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwnas.deploy import Export, OutputMeaning, Preprocessing
from hwnas.deploy.file_formats.file_format import SourceNetwork
from hwnas.deploy.file_formats.registry import file_format
from hwnas.deploy.file_formats.tensor_rt import TensorRT
from hwnas.errors import ArtifactError, ConfigError


class Builder:
    """Builder whose engine states the shapes of its profile, or that knows no operator."""

    def __init__(self, error: str) -> None:
        self._error, self.shapes = error, list[Any]()

    def __call__(self, logger: object) -> Builder:
        return self

    def create_network(self, flags: int) -> Any:
        return SimpleNamespace(
            get_input=lambda index: SimpleNamespace(name="images", shape=(-1, 1, 8, 8))
        )

    def parser(self, definition: object, logger: object) -> Any:
        return SimpleNamespace(
            parse=lambda model: not self._error,
            num_errors=1,
            get_error=lambda index: SimpleNamespace(desc=lambda: self._error),
        )

    def create_optimization_profile(self) -> Any:
        return SimpleNamespace(set_shape=lambda name, **sizes: self.shapes.append((name, sizes)))

    def create_builder_config(self) -> Any:
        return SimpleNamespace(add_optimization_profile=lambda profile: None)

    def build_serialized_network(self, definition: object, config: object) -> bytes:
        return json.dumps(self.shapes).encode()


@pytest.fixture
def error() -> str:
    return ""


@pytest.fixture(autouse=True)
def installed(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(error)
    stand_in = SimpleNamespace(
        Logger=type("Logger", (), {"ERROR": 0, "__init__": lambda self, level: None}),
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1),
        Builder=builder,
        OnnxParser=builder.parser,
    )
    monkeypatch.setitem(sys.modules, "tensorrt", stand_in)


@pytest.fixture
def source(exported: Export, preprocessing: Preprocessing) -> SourceNetwork:
    return SourceNetwork(
        exported.path, preprocessing, OutputMeaning("class_scores", tuple("0123456789")), batch=3
    )


def test_engine_is_built_for_the_batch_size(source: SourceNetwork, tmp_path: Path) -> None:
    TensorRT().convert(source, tmp_path / "model.engine")
    [(name, sizes)] = json.loads((tmp_path / "model.engine").read_text())
    assert name == "images"
    assert sizes == {key: [3, 1, 8, 8] for key in ("min", "opt", "max")}


@pytest.mark.parametrize("error", ["Assertion failed: no importer for op Weird"])
def test_message_of_the_parser_is_told_in_one_line(
    error: str, source: SourceNetwork, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match="TensorRT can") as told:
        TensorRT().convert(source, tmp_path / "model.engine")
    assert error in str(told.value)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "model.engine").exists()


def test_machine_without_a_gpu_is_told_that_engines_belong_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hwnas.deploy.file_formats.tensor_rt.gpu_name", lambda: "")
    with pytest.raises(ConfigError, match="this machine has no NVIDIA GPU"):
        file_format("tensorrt")
