"""Files that are there whole or not at all."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hwnas.atomic import replacing, replacing_folder, storage_errors, write_json, write_text
from hwnas.errors import StorageError

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
