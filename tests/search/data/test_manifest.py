"""The data manifest: every change of a file or array shows, and no outdated pixels are read."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hwnas.errors import ArtifactError
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import data_manifest, load_data
from hwnas.search.data.manifest import DataManifest, array_hash, manifest_difference

MODULE = importlib.import_module(
    "hwnas.search.data.manifest"
)  # the package has a function of its name
COUNT = 2400
"""More images than any sample of a thousand would see."""

Change = Callable[[Path], None]


def write_archive(path: Path, **changed: Any) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": rng.integers(0, 256, (COUNT, 4, 4, 1), dtype=np.uint8),
        "y_train": np.arange(COUNT) % 3,
        "x_test": rng.integers(0, 256, (30, 4, 4, 1), dtype=np.uint8),
        "y_test": np.arange(30) % 3,
    }
    np.savez(path, **{**arrays, **changed})


def write_folder(folder: Path, count: int = 8) -> None:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw(folder / f"{name}/{number}.png", 10 * number)


def draw(path: Path, value: int) -> None:
    Image.new("L", (6, 6), value).save(path)


def write_masks(folder: Path) -> None:
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
        for number in range(8):
            pixels = np.eye(6, dtype=np.uint8) * (number + 1 if kind == "images" else 1)
            Image.fromarray(pixels).save(folder / f"{kind}/{number}.png")


def load(source: str, base: Path, **options: Any) -> ImageData:
    return load_data(DataConfig(source, **options), base, 0, base / "cache")


def manifest(source: str, base: Path) -> DataManifest:
    found = data_manifest(DataConfig(source), base)
    assert found is not None
    return found


@pytest.mark.parametrize("source", ["npz:set.npz", "folder:classes", "folder:masks", "digits"])
@pytest.mark.parametrize("size", [None, 5])
def test_manifest_needs_no_decoded_images(tmp_path: Path, source: str, size: int | None) -> None:
    write_archive(tmp_path / "set.npz")
    write_folder(tmp_path / "classes")
    write_masks(tmp_path / "masks")
    quick = manifest(source, tmp_path)
    assert not (tmp_path / "cache").exists()
    data = load(source, tmp_path, size=size)
    assert data.manifest == quick
    assert pickle.loads(pickle.dumps(data)).manifest == quick


def test_manifest_of_a_function_source_lists_the_returned_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = """
import numpy as np
LABELS = np.arange(3000) % 2
def make():
    x = np.zeros((3000, 2, 2), np.uint8)
    return {"x_train": x, "y_train": LABELS, "x_test": x[:10], "y_test": LABELS[:10]}
"""
    (tmp_path / "function_of_ones_own.py").write_text(code)
    source = "function_of_ones_own:make"
    assert data_manifest(DataConfig(source), tmp_path) is None
    first = load(source, tmp_path)
    assert set(first.manifest.entries) == {"x_train", "y_train", "x_test", "y_test"}
    import function_of_ones_own  # type: ignore[import-not-found]

    assert load(source, tmp_path).fingerprint == first.fingerprint
    function_of_ones_own.LABELS[1234] ^= 1
    again = load(source, tmp_path)
    assert again.fingerprint != first.fingerprint
    assert manifest_difference(first.manifest, again.manifest) == "y_train changed"


@pytest.mark.parametrize("row", [1, 1201, COUNT - 1])
@pytest.mark.parametrize("size", [None, 3])
def test_manifest_shows_one_changed_image_and_load_data_rereads_it(
    tmp_path: Path, row: int, size: int | None
) -> None:
    write_archive(tmp_path / "set.npz")
    before = load("npz:set.npz", tmp_path, size=size)
    with np.load(tmp_path / "set.npz") as arrays:
        pixels = arrays["x_train"].copy()
    pixels[row] = 255 - pixels[row]
    write_archive(tmp_path / "set.npz", x_train=pixels)
    after = load("npz:set.npz", tmp_path, size=size)
    assert after.fingerprint != before.fingerprint
    assert manifest_difference(before.manifest, after.manifest) == "x_train changed"
    differ = (after.train.images != before.train.images).any(axis=(1, 2, 3))
    assert np.flatnonzero(differ).tolist() == [row]


def test_manifest_shows_shifted_labels_of_an_archive(tmp_path: Path) -> None:
    write_archive(tmp_path / "set.npz")
    before = manifest("npz:set.npz", tmp_path)
    write_archive(tmp_path / "set.npz", y_train=(np.arange(COUNT) + 1) % 3)
    assert manifest_difference(before, manifest("npz:set.npz", tmp_path)) == "y_train changed"


def test_manifest_shows_an_archive_altered_under_its_old_time(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    write_archive(path)
    past = path.stat().st_mtime_ns - 10**12
    os.utime(path, ns=(past, past))
    before = manifest("npz:set.npz", tmp_path)
    content = bytearray(path.read_bytes())
    content[1000] ^= 255
    path.write_bytes(content)
    os.utime(path, ns=(past, past))
    assert manifest("npz:set.npz", tmp_path) != before


def test_array_hashes_are_kept_until_the_archive_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(MODULE, "_TICK_S", -1.0)
    write_archive(tmp_path / "set.npz")
    before = manifest("npz:set.npz", tmp_path)
    (kept,) = (tmp_path / "home/data_hashes").iterdir()
    kept.write_text(kept.read_text().replace(before.entries["y_train"], "0" * 32))
    assert manifest("npz:set.npz", tmp_path).entries["y_train"] == "0" * 32, "it was read again"
    os.utime(tmp_path / "set.npz")
    assert manifest("npz:set.npz", tmp_path) == before
    kept.write_text("damaged")
    assert manifest("npz:set.npz", tmp_path) == before


def test_array_hashes_of_a_file_just_written_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    write_archive(tmp_path / "set.npz")
    manifest("npz:set.npz", tmp_path)
    assert not (tmp_path / "home/data_hashes").exists()


def test_manifest_needs_no_writable_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(MODULE, "_TICK_S", -1.0)
    write_archive(tmp_path / "set.npz")
    assert len(manifest("npz:set.npz", tmp_path).entries) == 4


def test_manifest_ignores_arrays_that_are_not_read(tmp_path: Path) -> None:
    write_archive(tmp_path / "set.npz")
    before = manifest("npz:set.npz", tmp_path)
    write_archive(tmp_path / "set.npz", notes=np.zeros(3))
    assert manifest("npz:set.npz", tmp_path) == before


FOLDER_CHANGES: dict[str, tuple[Change, str]] = {
    "other content": (
        lambda f: draw_later(f / "dog/3.png", 77),
        "1 of 16 files changed (dog/3.png)",
    ),
    "removed": (lambda f: (f / "dog/3.png").unlink(), "1 file removed (dog/3.png)"),
    "added": (lambda f: draw(f / "dog/new.png", 1), "1 file added (dog/new.png)"),
    "another class": (
        lambda f: move(f / "cat/3.png", f / "dog/moved.png"),
        "1 file moved (cat/3.png to dog/moved.png)",
    ),
    "swapped": (
        lambda f: swap(f / "cat/3.png", f / "dog/5.png"),
        "2 of 16 files changed",
    ),
    "a new class": (
        lambda f: shutil.copytree(f / "dog", f / "eel") and None,
        "8 files added",
    ),
}


def draw_later(path: Path, value: int) -> None:
    draw(path, value)
    later = path.stat().st_mtime_ns + 10**7
    os.utime(path, ns=(later, later))


def move(path: Path, to: Path) -> None:
    path.rename(to)


def swap(one: Path, other: Path) -> None:
    one.rename(one.with_name("swap"))
    other.rename(one)
    one.with_name("swap").rename(other)


@pytest.mark.parametrize("change", FOLDER_CHANGES)
def test_manifest_shows_every_change_of_a_folder(tmp_path: Path, change: str) -> None:
    write_folder(tmp_path / "set")
    before = load("folder:set", tmp_path)
    act, message = FOLDER_CHANGES[change]
    act(tmp_path / "set")
    quick = manifest("folder:set", tmp_path)
    assert manifest_difference(before.manifest, quick) == message
    after = load("folder:set", tmp_path)
    assert after.manifest == quick
    assert after.fingerprint != before.fingerprint
    shutil.rmtree(tmp_path / "cache")
    np.testing.assert_array_equal(
        after.train.images, load("folder:set", tmp_path).train.images, "pixels were not current"
    )


@pytest.mark.parametrize("file", ["images/3.png", "masks/3.png", "classes.txt"])
def test_manifest_shows_a_new_time_of_each_file_of_a_mask_folder(tmp_path: Path, file: str) -> None:
    write_masks(tmp_path / "set")
    (tmp_path / "set/classes.txt").write_text("paper\nink\n")
    before = manifest("folder:set", tmp_path)
    later = (tmp_path / "set" / file).stat().st_mtime_ns + 10**7
    os.utime(tmp_path / "set" / file, ns=(later, later))
    after = manifest("folder:set", tmp_path)
    assert manifest_difference(before, after) == f"1 of 17 files changed ({file})"


def test_fingerprint_does_not_depend_on_the_path_of_the_set(tmp_path: Path) -> None:
    write_folder(tmp_path / "set")
    before = load("folder:set", tmp_path)
    shutil.copytree(tmp_path / "set", tmp_path / "moved", copy_function=shutil.copy2)
    assert load("folder:moved", tmp_path).fingerprint == before.fingerprint


def test_fingerprint_includes_images_replaced_by_hand(tmp_path: Path) -> None:
    """Images that a caller replaced do not keep the fingerprint of the source."""
    write_archive(tmp_path / "set.npz")
    data = load("npz:set.npz", tmp_path)
    images = data.train.images.copy()
    images[1, 0, 0, 0] ^= 1  # not among the evenly spaced thousand
    validation = dataclasses.replace(data.validation, images=images)
    train = dataclasses.replace(data.train, images=images)
    same = dataclasses.replace(data, test=data.test)
    other = dataclasses.replace(data, train=train, validation=validation)
    assert "images" in " ".join(other.manifest.entries)
    assert len({same.fingerprint, other.fingerprint, data.fingerprint}) == 3


@pytest.mark.slow
def test_manifest_takes_2_s_per_gigabyte_and_5_s_for_100_000_files(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2**28 // 3072, 32, 32, 3), dtype=np.uint8)
    write_archive(tmp_path / "set.npz", x_train=images, y_train=np.arange(len(images)) % 3)
    del images
    for number in range(100_000):
        if number % 1000 == 0:
            (tmp_path / f"set/class{number // 1000}").mkdir(parents=True)
        (tmp_path / f"set/class{number // 1000}/image{number}.jpg").touch()
    for source, limit_s in (("npz:set.npz", 2 / 4), ("folder:set", 5)):
        began = time.process_time()  # other processes may keep this one waiting
        manifest(source, tmp_path)
        assert time.process_time() - began < limit_s


def test_array_hash_depends_on_type_shape_and_content_only() -> None:
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    different = [
        values,
        values.reshape(6, 4),
        values.astype(np.int64),
        values.view(np.uint32),
        values.T,
        np.array(["a", "b"]),
        np.array(3),
        np.zeros((0, 3)),
    ]
    assert len({array_hash(each) for each in different}) == len(different)
    assert array_hash(np.asfortranarray(values)) == array_hash(values)
    assert array_hash(np.repeat(values, 2, 0)[::2]) == array_hash(values)
    assert array_hash(np.broadcast_to(values[:1], (4, 6))) == array_hash(values[[0, 0, 0, 0]])


def test_array_hash_of_a_mapped_array_equals_that_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(MODULE, "_TICK_S", -1.0)
    values = np.random.default_rng(0).integers(0, 256, (50, 7), dtype=np.uint8)
    np.save(tmp_path / "values.npy", values)
    for _ in range(2):
        mapped = np.load(tmp_path / "values.npy", mmap_mode="r")
        assert array_hash(mapped) == array_hash(values)
        assert array_hash(mapped[10:]) == array_hash(values[10:])
        assert array_hash(np.asarray(mapped)[3:9]) == array_hash(values[3:9])
    values[20] += 1
    np.save(tmp_path / "values.npy", values)
    assert array_hash(np.load(tmp_path / "values.npy", mmap_mode="r")) == array_hash(values)


names = st.text(st.characters(codec="utf-8"), max_size=8)


@pytest.mark.slow
@given(st.dictionaries(names, names, max_size=6), st.sampled_from(["files", "arrays"]))
def test_manifest_json_round_trip(entries: dict[str, str], kind: Any) -> None:
    made = DataManifest(kind, entries)
    again = DataManifest.from_json(made.to_json())
    assert again == made
    assert again.fingerprint == made.fingerprint
    assert manifest_difference(made, again) == ""


@pytest.mark.slow
def test_manifest_file_round_trip_stays_small(tmp_path: Path) -> None:
    entries = {f"class {n % 100}/image {n}.jpg": f"{n} {1_700_000_000_000_000_000 + n}" for n in
               range(100_000)}  # fmt: skip
    made = DataManifest("files", {**entries, "odd \udcff name": "1 2"})
    made.write(tmp_path / "manifest.json.gz")
    assert DataManifest.read(tmp_path / "manifest.json.gz") == made
    assert (tmp_path / "manifest.json.gz").stat().st_size < 3_000_000


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b\x08"])
def test_manifest_read_refuses_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json.gz").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"manifest.json.gz cannot be read .* remove it"):
        DataManifest.read(tmp_path / "manifest.json.gz")


@pytest.mark.parametrize("data", [None, [], {}, {"schema": 2}, {"schema": 1, "kind": "files"}])
def test_manifest_from_json_refuses_other_data(data: Any) -> None:
    with pytest.raises(ArtifactError, match="manifest of the data"):
        DataManifest.from_json(data)


def files(**states: str) -> DataManifest:
    return DataManifest("files", states)


def arrays(**hashes: str) -> DataManifest:
    return DataManifest("arrays", hashes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (files(a="1", b="2"), files(a="1", b="2"), ""),
        (
            files(**{f"n{i}": "1" for i in range(3600)}),
            files(**{f"n{i}": "1" if i >= 12 else "2" for i in range(3600)}),
            "12 of 3,600 files changed",
        ),
        (files(a="1", z="9"), files(b="2", c="3", d="4"), "3 files added, 2 removed"),
        (files(a="1", z="9"), files(b="1", z="8"), "1 of 2 files changed (z), 1 moved (a to b)"),
        (files(a="1", b="1"), files(c="1", d="1"), "2 files added, 2 removed"),
        (arrays(x="1", y="2"), arrays(x="1", y="3"), "y changed"),
        (arrays(x="1", y="2", z="3"), arrays(x="2", y="3", w="1"), "x and y changed, w added, z re"
         "moved"),
        (arrays(x="1"), files(x="1"), "the data were arrays and are files now"),
    ],
)  # fmt: skip
def test_manifest_difference_summarises_changes_in_one_line(
    old: DataManifest, new: DataManifest, message: str
) -> None:
    assert manifest_difference(old, new) == message
