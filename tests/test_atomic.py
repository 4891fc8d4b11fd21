"""Files that are there whole or not at all."""

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
from hwnas.stages.finalists import read_bundles

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


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b.txt", "grün\n")
    assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "grün\n"
    assert names(tmp_path / "a") == ["b.txt"]


def test_json_is_readable_by_people_and_programs(tmp_path: Path) -> None:
    write_json(tmp_path / "v.json", {"name": "grün", "values": [1]})
    text = (tmp_path / "v.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"name": "grün", "values": [1]}
    assert "grün" in text
    assert text.endswith("}\n")


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_of_many_files_that_do_not_fit_one_is_named(tmp_path: Path) -> None:
    """`shutil.copytree` lists them all, each with both of its paths."""
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
def test_what_is_appended_is_a_line_of_its_own(
    tmp_path: Path, before: str | None, after: str
) -> None:
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
def test_after_a_failure_the_old_file_is_there(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    write_text(tmp_path / "f", "old")
    with pytest.raises(failure):
        fail_half_way(tmp_path / "f", failure)
    assert (tmp_path / "f").read_text() == "old"
    assert names(tmp_path) == ["f"]


@failures
def test_after_a_failure_the_old_folder_is_there(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    with replacing_folder(tmp_path / "bundle") as temporary:
        (temporary / "old").touch()
    with pytest.raises(failure):
        fail_half_way_in_folder(tmp_path / "bundle", failure)
    assert names(tmp_path / "bundle") == ["old"]
    assert names(tmp_path) == ["bundle"]


def test_a_folder_replaces_the_older_one_as_a_whole(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with replacing_folder(tmp_path / "new" / "bundle") as temporary:
            (temporary / content).touch()
            assert "bundle" not in names(tmp_path / "new") or content == "second"
        assert names(tmp_path / "new" / "bundle") == [content]
    assert names(tmp_path / "new") == ["bundle"]


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, "old")
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(path)]
    [line] = subprocess.check_output(command, text=True).splitlines()
    assert line.startswith(f"cannot write {path}: File too large")
    assert json.loads(path.read_text()) == "old"
    assert names(tmp_path) == ["f.json"]


def test_a_file_where_a_folder_should_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(StorageError, match="cannot write"):
        write_text(tmp_path / "f" / "g", "text")
    with pytest.raises(StorageError, match="cannot write"), replacing_folder(tmp_path / "f" / "g"):
        pass


def refused_inside(outer: Path, inner: Path) -> None:
    with storage_errors(outer), storage_errors(inner):
        raise OSError(28, "No space left on device")


def test_the_path_that_could_not_be_written_is_named_once(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("way", ["exchanges", "moves"])
def test_a_process_that_dies_at_any_step_leaves_a_whole_folder(tmp_path: Path, way: str) -> None:
    """Killed before each step of the replacement in turn, until one gets through."""
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


def test_a_folder_that_waits_does_not_outlive_the_one_that_is_there(tmp_path: Path) -> None:
    """Else it would come back when somebody deletes the folder."""
    for name in ("bundle", ".bundle.new"):
        (tmp_path / name).mkdir()
    recovered_folder(tmp_path / "bundle")
    assert names(tmp_path) == ["bundle"]


@pytest.mark.parametrize("name", [".", "..", "/", "sub/.."])
def test_folders_without_a_name_are_found(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recovered_folder(Path(name)) == Path(name)


def test_a_link_or_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "to")
    with pytest.raises(StorageError, match="not a folder"), replacing_folder(tmp_path / "link"):
        pytest.fail("it is refused before the work begins")
    assert (tmp_path / "link").is_symlink()


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power leaves an empty file under the name of a good one."""
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


def test_whoever_opens_a_run_gets_the_bundles_that_waited(tmp_path: Path) -> None:
    """A crash between the two steps left no folder under the name, and the run had no finalists."""
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
