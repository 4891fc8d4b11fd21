from __future__ import annotations

import io
import os
import time
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import psutil
import pytest

from hwnas.errors import DataError, StorageError
from hwnas.search.data import image_cache
from hwnas.search.data.image_cache import ImageCache, cache_key, is_held, write_images
from hwnas.search.data.split import Split

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 2), dtype=np.uint8)


def write(file: BinaryIO) -> None:
    write_images(file, ((str(i), image) for i, image in enumerate(IMAGES)), len(IMAGES))


@pytest.mark.parametrize("map_above", [0, 10**6])
def test_image_cache_returns_the_written_images(tmp_path: Path, map_above: int) -> None:
    images = ImageCache(tmp_path, map_above).arrays("set", {"train": write})["train"]
    np.testing.assert_array_equal(images, IMAGES)
    assert isinstance(images, np.memmap) == (map_above == 0)


def test_image_cache_maps_by_the_size_of_the_whole_set(tmp_path: Path) -> None:
    file = io.BytesIO()
    write(file)
    cache = ImageCache(tmp_path, map_above=file.tell() + 1)
    assert not isinstance(cache.arrays("one", {"train": write})["train"], np.memmap)
    both = cache.arrays("two", {"train": write, "test": write})
    assert all(isinstance(images, np.memmap) for images in both.values())


def test_image_cache_leaves_no_file_if_a_writer_fails(tmp_path: Path) -> None:
    bad = [("first", IMAGES[0]), ("second", IMAGES[0][:2])]
    with pytest.raises(DataError, match="second has shape"):
        ImageCache(tmp_path, 0).arrays("set", {"x": partial(write_images, images=bad, count=2)})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_image_cache_removes_what_killed_writers_left(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    old, new = (tmp_path / f"set/.train.npy.{process}.tmp" for process in (17, 18))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    ImageCache(tmp_path, 0).arrays("set", {"train": write})
    assert (old.exists(), new.exists()) == (False, True)


def test_mapped_images_are_held_until_the_last_view_of_them_ends(tmp_path: Path) -> None:
    file = tmp_path / "set/train.npy"
    assert not is_held(file)
    images = ImageCache(tmp_path, 0).arrays("set", {"train": write})["train"]
    assert is_held(file)
    view = images[2:4, ..., 0]
    del images
    assert is_held(file)
    del view
    assert not is_held(file)


def test_image_cache_names_a_damaged_file(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, 0)
    cache.arrays("set", {"train": write})
    file = tmp_path / "set/train.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train.npy is damaged .* delete it"):
        cache.arrays("set", {"train": write})


def test_image_cache_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot write .*cache"):
        ImageCache(tmp_path / "cache", 0).arrays("set", {"train": write})


def test_cache_key_contains_path_size_and_format(tmp_path: Path) -> None:
    key = cache_key(tmp_path / "set.npz", 64, "3ch")
    assert key.startswith("set-")
    assert key.endswith("-64-3ch-v3")
    others = [(tmp_path / "more/set.npz", 64, "3ch"), (tmp_path / "set.npz", 65, "3ch")]
    assert len({key, *(cache_key(*other) for other in others)}) == 3


def test_image_cache_remembers_a_number_per_version(tmp_path: Path) -> None:
    cache, asked = ImageCache(tmp_path / "cache", 0), iter((3, 1, 2))
    assert [cache.remembered("n", version, lambda: next(asked)) for version in "aab"] == [3, 3, 1]
    (tmp_path / "cache/n.json").write_text("damaged")
    assert cache.remembered("n", "b", lambda: next(asked)) == 2


def test_memory_of_mapped_images_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = np.random.default_rng(0).integers(0, 256, (4000, 64, 64, 3), dtype=np.uint8)
    with (tmp_path / "many.npy").open("wb") as file:
        np.save(file, many)
    monkeypatch.setattr(image_cache, "_MOST_READ_BYTES", 2**22)
    images = ImageCache(tmp_path, 0).open({"many": tmp_path / "many.npy"})["many"]
    split = Split(images, np.arange(4000), np.arange(4000))
    before = psutil.Process().memory_info().rss
    for start in range(0, 4000, 100):
        rows = np.arange(start, start + 100)
        assert np.array_equal(split.take(rows)[0], many[rows])
    assert psutil.Process().memory_info().rss - before < many.nbytes / 2
