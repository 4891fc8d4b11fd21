from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hwnas.deploy import Bundle, Export, OutputMeaning, Preprocessing, write_bundle
from hwnas.errors import ArtifactError, ConfigError, DataError, StorageError


def test_write_bundle_replaces_an_older_bundle(contents: dict[str, Any], folder: Path) -> None:
    (folder / "old").touch()
    made = write_bundle(folder, **{**contents, "task": "another"})
    assert made.description["task"] == "another"
    assert not (folder / "old").exists()
    made.verify()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"metrics": [{"name": "accuracy", "value": 1.0}]}, ConfigError, "a kind"),
        ({"predictions": [{"name": "x", "value": 1, "kind": "?"}]}, ConfigError, "predicted"),
        ({"golden_images": np.zeros((1, 8, 8, 3), np.uint8)}, DataError, "expected"),
        ({"outputs": OutputMeaning("class_scores", ("a", "b"))}, DataError, "shape"),
        ({"preprocessing": Preprocessing(9, 9, 1, (0,), (1,))}, ArtifactError, "takes inputs"),
        ({"onnx": Path("nowhere.onnx")}, ArtifactError, "there is no ONNX file"),
    ],
)
def test_write_bundle_leaves_no_files_after_invalid_arguments(
    contents: dict[str, Any],
    tmp_path: Path,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        write_bundle(tmp_path / "bundle", **{**contents, **change})
    assert list(tmp_path.iterdir()) == []


def test_write_bundle_keeps_the_older_bundle_after_a_failure(
    contents: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(StorageError, match="No space left"):
        write_bundle(folder, **contents)
    Bundle.load(folder).verify()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_write_bundle_packs_shared_and_transposed_weights(
    contents: dict[str, Any], tmp_path: Path, exported: Export
) -> None:
    shared = torch.randn(3, 4)
    made = write_bundle(
        tmp_path / "bundle", **{**contents, "weights": {"a": shared, "b": shared, "c": shared.T}}
    )
    assert torch.equal(made.weights()["c"], shared.T)
