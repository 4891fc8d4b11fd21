from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    OutputMeaning,
    Preprocessing,
    write_bundle,
)
from hwnas.errors import ArtifactError, ConfigError, DataError, StorageError


def test_write_bundle_replaces_an_older_bundle(
    to_pack: BundleNetwork, facts: BundleFacts, folder: Path
) -> None:
    (folder / "old").touch()
    made = write_bundle(folder, to_pack, replace(facts, task="another"))
    assert made.description["task"] == "another"
    assert not (folder / "old").exists()
    made.verify()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"metrics": [{"name": "accuracy", "value": 1.0}]}, "a kind"),
        ({"predictions": [{"name": "x", "value": 1, "kind": "?"}]}, "predicted"),
    ],
)
def test_bundle_facts_refuse_numbers_without_a_kind(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BundleFacts(space="mobilenet", task="none", provenance={}, **numbers)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"golden_images": np.zeros((1, 8, 8, 3), np.uint8)}, DataError, "expected"),
        ({"outputs": OutputMeaning("class_scores", ("a", "b"))}, DataError, "shape"),
        ({"preprocessing": Preprocessing(9, 9, 1, (0,), (1,))}, ArtifactError, "takes inputs"),
    ],
)
def test_write_bundle_leaves_no_files_after_invalid_arguments(
    to_pack: BundleNetwork,
    facts: BundleFacts,
    tmp_path: Path,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    wrong = replace(to_pack, **change)
    with pytest.raises(error, match=message):
        write_bundle(tmp_path / "bundle", wrong, facts)
    assert list(tmp_path.iterdir()) == []


def test_write_bundle_refuses_an_export_without_its_file(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path
) -> None:
    lost = replace(to_pack, export=replace(to_pack.export, path=tmp_path / "nowhere.onnx"))
    with pytest.raises(ArtifactError, match="there is no ONNX file"):
        write_bundle(tmp_path / "bundle", lost, facts)
    assert list(tmp_path.iterdir()) == []


def test_write_bundle_keeps_the_older_bundle_after_a_failure(
    to_pack: BundleNetwork, facts: BundleFacts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(StorageError, match="No space left"):
        write_bundle(folder, to_pack, facts)
    Bundle.load(folder).verify()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_write_bundle_packs_shared_and_transposed_weights(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path
) -> None:
    shared = torch.randn(3, 4)
    weights = {"a": shared, "b": shared, "c": shared.T}
    made = write_bundle(tmp_path / "bundle", replace(to_pack, weights=weights), facts)
    assert torch.equal(made.weights()["c"], shared.T)
