"""Atomic writing: files and folders are complete or absent."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hwnas.atomic import (
    appending,
    recovered_folder,
    replacing,
    replacing_folder,
    storage_errors,
    write_json,
    write_text,
)
from hwnas.deploy.bundles.bundle import SEAL
from hwnas.errors import StorageError
from hwnas.predictors.devices.store import DeviceStore
from hwnas.stages.finalists.bundles import read_bundles

ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from hwnas.atomic import write_text
from hwnas.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_text(Path(sys.argv[1]), "x" * 5000)
except StorageError as error:
    print(error)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_text_creates_missing_folders(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b.txt", "grün\n")
    assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "grün\n"
    assert names(tmp_path / "a") == ["b.txt"]


def test_write_json_writes_readable_utf8(tmp_path: Path) -> None:
    write_json(tmp_path / "v.json", {"name": "grün", "values": [1]})
    text = (tmp_path / "v.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"name": "grün", "values": [1]}
    assert "grün" in text
    assert text.endswith("}\n")


def test_replacing_keeps_the_old_file_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_storage_errors_names_one_of_many_failed_files(tmp_path: Path) -> None:
    """`shutil.copytree` lists every failed file with both of its paths."""
    full = "[Errno 28] No space left on device: 'a' -> 'b'"
    with pytest.raises(StorageError) as raised, storage_errors(tmp_path):
        raise shutil.Error([("a", "b", full), ("c", "d", full)])
    assert str(raised.value).startswith(
        f"cannot write {tmp_path}: [Errno 28] No space left on device. Free"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "new\n"), ("", "new\n"), ("old\n", "old\nnew\n"), ("old\nha", "old\nha\nnew\n")],
)
def test_appending_begins_on_a_new_line(tmp_path: Path, before: str | None, after: str) -> None:
    path = tmp_path / "lines"
    if before is not None:
        path.write_text(before)
    with appending(path) as file:
        file.write("new\n")
    assert path.read_text() == after


def fail_half_way(target: Path, failure: type[BaseException]) -> None:
    with replacing(target) as temporary:
        temporary.write_text("half")
        raise failure


def fail_half_way_in_folder(target: Path, failure: type[BaseException]) -> None:
    with replacing_folder(target) as temporary:
        (temporary / "half").touch()
        raise failure


failures = pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])


@failures
def test_replacing_keeps_the_old_file_after_a_failure(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    write_text(tmp_path / "f", "old")
    with pytest.raises(failure):
        fail_half_way(tmp_path / "f", failure)
    assert (tmp_path / "f").read_text() == "old"
    assert names(tmp_path) == ["f"]


@failures
def test_replacing_folder_keeps_the_old_folder_after_a_failure(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    with replacing_folder(tmp_path / "bundle") as temporary:
        (temporary / "old").touch()
    with pytest.raises(failure):
        fail_half_way_in_folder(tmp_path / "bundle", failure)
    assert names(tmp_path / "bundle") == ["old"]
    assert names(tmp_path) == ["bundle"]


def test_replacing_folder_replaces_the_whole_folder(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with replacing_folder(tmp_path / "new" / "bundle") as temporary:
            (temporary / content).touch()
            assert "bundle" not in names(tmp_path / "new") or content == "second"
        assert names(tmp_path / "new" / "bundle") == [content]
    assert names(tmp_path / "new") == ["bundle"]


def test_write_text_on_a_full_disk_raises_one_line_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, "old")
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(path)]
    [line] = subprocess.check_output(command, text=True).splitlines()
    assert line.startswith(f"cannot write {path}: File too large")
    assert json.loads(path.read_text()) == "old"
    assert names(tmp_path) == ["f.json"]


def test_write_text_raises_a_storage_error_if_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(StorageError, match="cannot write"):
        write_text(tmp_path / "f" / "g", "text")
    with pytest.raises(StorageError, match="cannot write"), replacing_folder(tmp_path / "f" / "g"):
        pass


def refused_inside(outer: Path, inner: Path) -> None:
    with storage_errors(outer), storage_errors(inner):
        raise OSError(28, "No space left on device")


def test_storage_errors_names_only_the_innermost_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"inner: No space left on device\.") as caught:
        refused_inside(tmp_path / "outer", tmp_path / "inner")
    assert "outer" not in str(caught.value)


DIES_WHILE_IT_REPLACES = """
import os, shutil, sys
from pathlib import Path
import hwnas.atomic
from hwnas.atomic import replacing_folder

path, last_step, exchanges = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "exchanges"
if not exchanges:
    hwnas.atomic._exchanged = lambda first, second: False
steps = 0

def stepping(function):
    def step(*arguments, **named):
        global steps
        steps += 1
        if steps > last_step:
            os._exit(9)
        return function(*arguments, **named)
    return step

with replacing_folder(path) as temporary:
    (temporary / "a").write_text("new")
    (temporary / "b").write_text("new")
    for module, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (os, "unlink"),
                         (os, "rmdir"), (shutil, "rmtree"), (hwnas.atomic, "_exchanged")):
        if hasattr(module, name):
            setattr(module, name, stepping(getattr(module, name)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exchanges", "moves"])
def test_replacing_folder_leaves_a_complete_folder_if_killed_at_any_step(
    tmp_path: Path, way: str
) -> None:
    """Kill a process before each step of the replacement in turn, until one finishes."""
    found, status, step = set(), 9, 0
    while status == 9:
        assert step < 100
        path = tmp_path / str(step) / "bundle"
        with replacing_folder(path) as temporary:
            (temporary / "a").write_text("old")
            (temporary / "b").write_text("old")
        status = subprocess.run(
            [sys.executable, "-c", DIES_WHILE_IT_REPLACES, str(path), str(step), way]
        ).returncode
        recovered_folder(path)
        assert names(path) == ["a", "b"], f"killed before step {step}"
        contents = {(path / name).read_text() for name in ("a", "b")}
        assert len(contents) == 1
        found |= contents
        with replacing_folder(path) as temporary:
            (temporary / "c").touch()
        assert names(path.parent) == ["bundle"], "what the dead process left is removed"
        step += 1
    assert status == 0
    assert found == {"old", "new"}
    assert step > 5


def test_recovered_folder_removes_a_pending_folder_beside_the_final_one(tmp_path: Path) -> None:
    """Otherwise the pending folder would reappear once the final one is deleted."""
    for name in ("bundle", ".bundle.new"):
        (tmp_path / name).mkdir()
    recovered_folder(tmp_path / "bundle")
    assert names(tmp_path) == ["bundle"]


@pytest.mark.parametrize("name", [".", "..", "/", "sub/.."])
def test_recovered_folder_accepts_paths_without_a_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recovered_folder(Path(name)) == Path(name)


def test_replacing_folder_refuses_to_replace_a_link(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "to")
    with pytest.raises(StorageError, match="not a folder"), replacing_folder(tmp_path / "link"):
        pytest.fail("it is refused before the work begins")
    assert (tmp_path / "link").is_symlink()


def test_replacing_syncs_files_before_they_are_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could leave an empty file under the final name."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        sync(handle)
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")

    def replaced(source: Path, path: Path) -> None:
        replace(source, path)
        done.append(f"replace {path.name}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_text(tmp_path / "f.json", "text")
    assert len(done) == 3
    assert done[0].startswith("sync .f.json.")
    assert done[1:] == ["replace f.json", f"sync {tmp_path.name}"]
    done.clear()
    with replacing_folder(tmp_path / "folder") as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").touch()
    assert {"sync file", "sync inner", f"sync {tmp_path.name}"} <= set(done)


def test_readers_recover_pending_folders(tmp_path: Path) -> None:
    """A crash between the two steps leaves no folder under the final name."""
    (tmp_path / ".bundles.new").mkdir()
    assert read_bundles(tmp_path / "bundles") == {}
    assert names(tmp_path) == ["bundles"]
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / ".latency_ms.new").mkdir()
    (tmp_path / "cpu" / ".latency_ms.new" / "profile.json").touch()
    assert DeviceStore(tmp_path).has("cpu")
    assert DeviceStore(tmp_path).devices == ["cpu"]
    (tmp_path / ".sealed.new").mkdir()
    (tmp_path / ".sealed.new" / "bundle.json").write_text('{"schema": 1}')
    assert SEAL.read(tmp_path / "sealed") == {"schema": 1}
