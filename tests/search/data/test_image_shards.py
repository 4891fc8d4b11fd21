"""Data sets in WebDataset shards."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.experiment.from_images import data_table
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.image_size import ImageSize, read_image

Files = Sequence[tuple[str, bytes]]


def picture(value: int, size: tuple[int, int] = (6, 4), mode: str = "L") -> bytes:
    """Return a PNG file whose pixels all have one value."""
    file = io.BytesIO()
    Image.fromarray(np.full(size, value, np.uint8)).convert(mode).save(file, "PNG")
    return file.getvalue()


def shard(path: Path, files: Files) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def samples(count: int, first: int = 0, mode: str = "L") -> list[tuple[str, bytes]]:
    """Return samples in which image k has pixels 10 k, and class k mod 2."""
    found = []
    for k in range(first, first + count):
        found.append((f"{k:04}.png", picture(10 * k, mode=mode)))
        found.append((f"{k:04}.json", b"{}"))
        found.append((f"{k:04}.cls", b"%d\n" % (k % 2)))
    return found


def check_classes(data: ImageData) -> None:
    for split in (data.train, data.validation, data.test):
        images, targets = split.take(range(len(split)))
        assert np.array_equal(images[:, 0, 0, 0] // 10 % 2, targets)


def test_shards_without_parts_are_divided_like_a_folder(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    for number in range(2):
        shard(tmp_path / f"set/{number:05}.tar", samples(10, 10 * number))
    (tmp_path / "set/classes.txt").write_text("even\nodd\n")
    data = load()
    assert data.class_names == ("even", "odd")
    assert data.image_shape == (6, 4, 1)
    assert len(data.train) + len(data.validation) + len(data.test) == 20
    assert len(data.test) == 4
    check_classes(data)


@pytest.mark.parametrize(
    "names",
    [
        ("my-train-0000.tar", "my-val-0000.tar", "my-test-0000.tar"),
        ("train/0000.tar", "validation/0000.tar", "test/0000.tar"),
    ],
)
def test_shards_keep_the_parts_of_their_names(
    tmp_path: Path, load: Callable[..., ImageData], names: tuple[str, ...]
) -> None:
    for name, count in zip(names, (12, 4, 6), strict=True):
        shard(tmp_path / "set" / name, samples(count))
    data = load()
    assert [len(split) for split in (data.train, data.validation, data.test)] == [12, 4, 6]
    check_classes(data)


def test_shards_of_train_and_val_alone_test_on_val(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    shard(tmp_path / "set/train-0.tar", samples(20))
    shard(tmp_path / "set/val-0.tar", samples(6))
    data = load()
    assert [len(split) for split in (data.train, data.validation, data.test)] == [18, 2, 6]


def test_grey_and_colour_images_of_other_sizes_become_one_array(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    colour = [("a.png", picture(90, (9, 9), "RGB")), ("a.cls", b"1")]
    shard(tmp_path / "set/0.tar", [*samples(9), *colour])
    with pytest.raises(DataError, match=r"0\.tar: a"):
        load()
    assert load(size=5).image_shape == (5, 5, 3)


def test_shards_are_decoded_once_and_only_changed_images_again(
    tmp_path: Path, load: Callable[..., ImageData], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def counting(source: io.BytesIO, channels: int, size: ImageSize | None) -> np.ndarray:
        decoded.append(channels)
        return read_image(source, channels, size)

    monkeypatch.setattr("hwnas.search.data.layouts.image_shards.read_image", counting)
    shard(tmp_path / "set/0.tar", samples(10))
    before = load()
    assert len(decoded) == 10
    assert np.array_equal(load().train.images, before.train.images)
    assert len(decoded) == 10
    changed = [("0003.png", picture(130)), ("0003.cls", b"1")]
    shard(tmp_path / "set/0.tar", [*samples(3), *changed, *samples(6, 4)])
    check_classes(load())
    assert len(decoded) == 11


def test_damaged_images_are_named_and_can_be_left_out(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    shard(tmp_path / "set/0.tar", [("x/bad.jpg", b"no image"), ("x/bad.cls", b"0"), *samples(12)])
    with pytest.raises(DataError, match=r"1 of 13 images .* 0\.tar: x/bad .*skip_damaged = true"):
        load()
    data = load(skip_damaged=True)
    assert data.skipped == ("0.tar: x/bad",)
    check_classes(data)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"0.tar": [("a.png", picture(1))]}, r"0\.tar: a has png; it needs one image and its cl"),
        ({"0.tar": [("a.cls", b"1")]}, "0.tar: a has cls"),
        ({"0.tar": [("a.png", picture(1)), ("a.jpg", b""), ("a.cls", b"1")]}, "has cls, jpg, png"),
        ({"0.tar": [("a.png", picture(1)), ("a.cls", b"cat")]}, "is 'cat'; expected a number from"),
        ({"0.tar": [("a.png", picture(1)), ("a.cls", b"-1")]}, "is '-1'; expected a number from 0"),
        ({"0.tar": [("readme.txt", b"")]}, r"0\.tar hold no samples; expected shards"),
        ({"0.tar": [*samples(4), ("x.png", picture(1)), ("x.cls", b"7")]}, "7"),
        (
            {"train-0.tar": samples(4), "test-0.tar": samples(4), "more.tar": samples(4)},
            "more.tar is beside files for test and train",
        ),
    ],
)
def test_wrong_shards_are_refused(
    tmp_path: Path, load: Callable[..., ImageData], files: Mapping[str, Files], told: str
) -> None:
    for name, content in files.items():
        shard(tmp_path / "set" / name, content)
    with pytest.raises(DataError, match=told):
        load()


@pytest.mark.parametrize("end", ["header", "content", "samples"])
def test_a_shard_that_ends_too_early_is_refused(
    tmp_path: Path, load: Callable[..., ImageData], end: str
) -> None:
    path = tmp_path / "set/0.tar"
    shard(path, samples(10))
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        member = archive.getmember("0007.png")
    cut = {"header": member.offset + 100, "content": member.offset_data + 5}
    path.write_bytes(whole[: cut.get(end, member.offset)])
    with pytest.raises(DataError, match=r"0\.tar cannot be read .*expected a whole tar file"):
        load()


def test_search_of_shards_scales_images_to_their_own_size(tmp_path: Path) -> None:
    large = [("a.png", picture(3, (40, 50))), ("a.cls", b"1")]
    shard(tmp_path / "set/0.tar", large)
    table = data_table(tmp_path / "set", minutes=30)
    assert table == {"source": f"folder:{tmp_path / 'set'}", "size": 40}
