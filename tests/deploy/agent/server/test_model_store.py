import hashlib
import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.deploy.agent.server.model_store import MissingModel, ModelStore, looks_like_onnx
from hwnas.errors import ArtifactError, ConfigError, HwnasError, StorageError


def send(store: ModelStore, content: bytes, name: str = "", needed: tuple[str, ...] = ()) -> str:
    name = name or hashlib.sha256(content).hexdigest()
    store.receive(name, len(content), io.BytesIO(content).read, needed)
    return name


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_store_keeps_a_model_by_its_digest(model: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path, AgentLimits())
    name = send(store, model.read_bytes())
    assert name in store
    assert store.path(name).read_bytes() == model.read_bytes()
    assert send(store, model.read_bytes()) == name, "sending it again is no harm"
    assert len(files(tmp_path)) == 1


@given(content=st.binary(min_size=1, max_size=200))
def test_store_refuses_other_content_and_leaves_no_file(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    with pytest.raises(HwnasError):
        send(ModelStore(folder, AgentLimits()), content)
    assert not files(folder)


def test_store_refuses_an_archive(model: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("../../escaped.onnx", model.read_bytes())
    with pytest.raises(ArtifactError, match="not an ONNX file"):
        send(ModelStore(tmp_path / "store", AgentLimits()), archive.read_bytes())
    assert not files(tmp_path / "store")


def test_store_refuses_content_with_another_digest_or_length(model: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path, AgentLimits())
    with pytest.raises(ArtifactError, match="SHA-256"):
        send(store, model.read_bytes(), "0f" * 32)
    content = model.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(ArtifactError, match="10 bytes of the model are missing"):
        store.receive(digest, len(content) + 10, io.BytesIO(content).read, ())
    assert not files(tmp_path)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "0f" * 32 + "/../x", "0f" * 32 + "\0"])
def test_store_refuses_names_outside_its_folder(model: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        send(ModelStore(tmp_path, AgentLimits()), model.read_bytes(), name)
    assert not files(tmp_path)


def test_store_limits_size_and_number_of_models(model: Path, tmp_path: Path) -> None:
    content = model.read_bytes()
    small = ModelStore(tmp_path / "small", replace(AgentLimits(), model_bytes=len(content) - 1))
    with pytest.raises(ConfigError, match=f"expected 1 to {len(content) - 1}"):
        send(small, content)
    two = ModelStore(tmp_path / "two", replace(AgentLimits(), models=2))
    documented = [content + b"\x32\x01" + bytes([letter]) for letter in b"abc"]
    first, second = (send(two, each) for each in documented[:2])
    third = send(two, documented[2], needed=(first,))
    assert (first in two, second in two, third in two) == (True, False, True)
    with pytest.raises(StorageError, match="no space"):
        send(two, content, needed=(first, third))


def test_store_removes_unfinished_files_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(b"half")
    ModelStore(tmp_path, AgentLimits())
    assert not files(tmp_path)


def test_looks_like_onnx_refuses_malformed_fields(model: Path, tmp_path: Path) -> None:
    assert looks_like_onnx(model)
    path = tmp_path / "many"
    path.write_bytes(b"\x08\x01" * 1_000_000)  # valid fields, but a million of them
    assert not looks_like_onnx(path)
    path.write_bytes(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")  # longer than the file
    assert not looks_like_onnx(path)


@pytest.mark.parametrize("damage", ["truncated", "emptied", "changed"])
def test_store_removes_a_damaged_file(model: Path, tmp_path: Path, damage: str) -> None:
    store = ModelStore(tmp_path, AgentLimits())
    name = send(store, model.read_bytes())
    assert name in store, "so it has been looked at before"
    content = model.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    damaged = {"truncated": content[:-9], "emptied": b"", "changed": changed}[damage]
    store.path(name).write_bytes(damaged)
    assert name not in store
    assert not files(tmp_path), "it is asked for again, and has room"
    assert send(store, content) in store


def test_store_verifies_the_copy_for_a_job(model: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store", AgentLimits())
    name = send(store, model.read_bytes())
    store.copy(name, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == model.read_bytes()
    store.path(name).write_bytes(model.read_bytes()[:-9])
    for reason in ("damaged", "no longer stored"):
        with pytest.raises(MissingModel, match=reason):
            store.copy(name, tmp_path / "copy")


def test_store_syncs_a_model_to_disk_before_renaming_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        sync(handle)
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).suffix)

    monkeypatch.setattr(os, "fsync", noted)
    send(ModelStore(tmp_path, AgentLimits()), model.read_bytes())
    assert synced == [".part", ""], "the file under its temporary name, then the folder"
