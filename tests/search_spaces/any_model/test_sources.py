"""Models that a recipe names: functions, timm and Transformers, and files with weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hwnas.errors import ArtifactError, ConfigError
from hwnas.search_spaces import ElasticSpace
from hwnas.search_spaces.registry import named_space

SOURCE = """
from torch import nn

def build_model(image_shape, outputs, hidden=32):
    return nn.Sequential(
        nn.Conv2d(image_shape[2], 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 36, hidden), nn.ReLU(), nn.Linear(hidden, outputs),
    )

def stubborn():
    return build_model((8, 8, 3), 7)

def broken(outputs):
    raise RuntimeError("no such layer")

not_a_model = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"model_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def made(model: str, folder: Path = Path(), **options: Any) -> ElasticSpace:
    space = named_space("elastic", (8, 8, 3), 5, {"model": model, **options}, folder)
    assert isinstance(space, ElasticSpace)
    return space


def test_elastic_space_is_made_from_a_named_function(module: str) -> None:
    space = made(f"{module}:build_model", widths=[0.5, 1.0])
    assert {c.name: c.options for c in space.choices} == {"0.width": (8, 16), "3.width": (16, 32)}
    assert space.fingerprint == made(f"{module}:build_model", widths=[0.5, 1.0]).fingerprint


def test_weights_are_read_from_a_file_beside_the_recipe(module: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    state = made(f"{module}:build_model").supernet().shared.state_dict()
    given = {name: torch.randn(tensor.shape) for name, tensor in state.items()}
    save_file(given, path)
    space = made(f"{module}:build_model", tmp_path, weights="x.safetensors")
    shared = space.supernet().shared.state_dict()
    torch.testing.assert_close(shared["5.bias"], given["5.bias"])
    torch.testing.assert_close(shared["0.bias"].sort()[0], given["0.bias"].sort()[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"5.bias": None}, "does not fit the model; missing: 5.bias$"),
        ({"head": torch.zeros(1)}, "unexpected: head$"),
        ({"0.bias": torch.zeros(3)}, r"of another shape: 0.bias \(3,\) for \(16,\)$"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_their_keys(
    module: str, tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    state = dict(made(f"{module}:build_model").supernet().shared.state_dict()) | change
    save_file({k: v for k, v in state.items() if v is not None}, tmp_path / "x.safetensors")
    with pytest.raises(ArtifactError, match=message):
        made(f"{module}:build_model", tmp_path, weights="x.safetensors")


def test_weights_in_a_missing_or_damaged_file_are_refused(module: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no file"):
        made(f"{module}:build_model", tmp_path, weights="x.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ArtifactError, match="is not a safetensors file"):
        made(f"{module}:build_model", tmp_path, weights="x.safetensors")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "expected 'package.module:function', or one of 'hf:...', 'onnx:...'"),
        ("no_such_module_here:build", "'no_such_module_here' does not import"),
        ("MODULE:bild_model", "did you mean 'build_model'"),
        ("MODULE:broken", "fails: RuntimeError: no such layer"),
        ("MODULE:not_a_model", "gives|not callable"),
        ("MODULE:stubborn", r"outputs of shape \(2, 7\) for 2 images; expected \(2, 5\)"),
    ],
)
def test_model_that_cannot_be_made_is_refused_with_a_reason(
    module: str, name: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        made(name.replace("MODULE", module))


@pytest.mark.parametrize("name", ["timm:resnet18", "hf:some/model"])
def test_model_of_a_missing_library_is_refused_with_its_pip_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.search_spaces.any_model.sources.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"is not installed; run: pip install \w+$"):
        made(name)
