from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.search.data import decoded_images
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_data import DataConfig
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.layouts import image_folder
from hwnas.search.data.layouts.image_folder import read_folder
from hwnas.search.data.loading import load_data
from hwnas.search.data.raw_images import RawImages


def draw(path: Path, value: int, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).convert(mode).save(path)


def read(folder: Path, side: int | None = None, skip_damaged: bool = False) -> RawImages:
    size = None if side is None else ImageSize(side, side)
    return read_folder(folder, size, ImageCache(folder.parent / "cache", 10**9), skip_damaged)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Draw ten cats with even pixel values and ten dogs with odd ones."""
    for number in range(10):
        draw(tmp_path / f"pets/cat/{number}.png", 2 * number)
        draw(tmp_path / f"pets/dog/{number}.png", 2 * number + 1)
    return tmp_path / "pets"


def test_read_folder_takes_each_folder_as_a_class(pets: Path) -> None:
    raw = read(pets)
    assert raw.test is None
    assert raw.class_names == ("cat", "dog")
    assert raw.images.shape == (20, 6, 6, 3)
    assert (raw.images[:, 0, 0, 0] % 2).tolist() == raw.targets.tolist()


def test_load_data_takes_a_fifth_of_an_undivided_folder_for_testing(
    pets: Path, tmp_path: Path
) -> None:
    config = DataConfig("folder:pets")
    one, other = (load_data(config, tmp_path, seed, tmp_path / "cache") for seed in (0, 1))
    assert [len(part) for part in (one.train, one.validation, one.test)] == [14, 2, 4]
    assert np.bincount(one.test.targets).tolist() == [2, 2]
    assert one.test.positions.tolist() == other.test.positions.tolist()


def test_read_folder_keeps_the_users_train_and_test_folders(tmp_path: Path) -> None:
    for number, name in enumerate(("train/cat/a", "train/dog/a", "train/dog/b", "test/dog/a")):
        draw(tmp_path / f"pets/{name}.png", number)
    raw = read(tmp_path / "pets")
    assert raw.targets.tolist() == [0, 1, 1]
    assert raw.test is not None
    assert raw.test[0][0, 0, 0].tolist() == [3, 3, 3]
    assert raw.test[1].tolist() == [1]


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_read_folder_keeps_the_users_validation_folder(tmp_path: Path, name: str) -> None:
    parts = {"train": (10, 12, 14), name: (20, 22), "test": (30,)}
    for part, values in parts.items():
        for value in values:
            draw(tmp_path / f"pets/{part}/cat/{value}.png", value)
            draw(tmp_path / f"pets/{part}/dog/{value}.png", value + 1)
    for size in (None, 3):
        data = load_data(DataConfig("folder:pets", size=size), tmp_path, 0, tmp_path / "cache")
        splits = {"train": data.train, name: data.validation, "test": data.test}
        for part, values in parts.items():
            images, labels = splits[part].take(range(len(splits[part])))
            expected = sorted(value + label for value in values for label in (0, 1))
            assert sorted(images[:, 0, 0, 0].tolist()) == expected
            assert (images[:, 0, 0, 0] % 2).tolist() == labels.tolist()


def test_read_folder_tests_on_the_validation_folder_of_imagenet(tmp_path: Path) -> None:
    for number, name in enumerate(("train/cat/a", "train/dog/a", "val/cat/a", "val/dog/a")):
        draw(tmp_path / f"pets/{name}.png", number)
    raw = read(tmp_path / "pets")
    assert raw.validation is None
    assert raw.test is not None
    assert raw.test[0][:, 0, 0, 0].tolist() == [2, 3]
    assert raw.test[1].tolist() == [0, 1]


def test_read_folder_gives_one_channel_only_if_all_images_are_grey(tmp_path: Path) -> None:
    draw(tmp_path / "set/a/1.png", 10, mode="L")
    draw(tmp_path / "set/b/1.png", 20, mode="1")
    assert read(tmp_path / "set").images.shape == (2, 6, 6, 1)
    draw(tmp_path / "set/b/2.png", 30, mode="RGBA")
    assert read(tmp_path / "set").images.shape == (3, 6, 6, 3)


def test_read_folder_resizes_all_images_to_squares(pets: Path) -> None:
    draw(pets / "cat/wide.jpg", 100, (40, 10))
    with pytest.raises(DataError, match=r"cat/wide.jpg has shape \(10, 40, 3\) .*data.size"):
        read(pets)
    raw = read(pets, 5)
    assert raw.images.shape == (21, 5, 5, 3)
    assert 100 in raw.images[:, 0, 0, 0]


def test_read_folder_ignores_names_that_begin_with_a_dot(pets: Path) -> None:
    (pets / ".DS_Store").write_text("")
    (pets / "cat/.thumbs").write_text("")
    assert len(read(pets).images) == 20


def test_read_folder_reads_an_added_image(pets: Path) -> None:
    read(pets)
    draw(pets / "dog/more.png", 99)
    assert len(read(pets).images) == 21


class Decoder:
    """Decoder that lists the files it decodes, and can stop at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.stop_at: int | None = None
        read_image = image_folder.read_image

        def counting(file: Path, channels: int, size: ImageSize | None) -> np.ndarray:
            if len(self.names) == self.stop_at:
                raise KeyboardInterrupt
            self.names.append(f"{file.parent.name}/{file.name}")
            return read_image(file, channels, size)

        monkeypatch.setattr(image_folder, "read_image", counting)
        monkeypatch.setattr(decoded_images, "_MOST_THREADS", 1)  # in the order of the files

    def since(self) -> list[str]:
        """Return the files that were decoded since the last call."""
        names, self.names = self.names, []
        return names


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    return Decoder(monkeypatch)


def spoil(path: Path) -> None:
    """Truncate a file; its new size marks it as changed, whatever the clock says."""
    draw(path, 5)
    path.write_bytes(path.read_bytes()[:45])


def values(raw: RawImages) -> list[int]:
    return raw.images[:, 0, 0, 0].tolist()


def test_read_folder_names_damaged_images_and_keeps_the_others(
    pets: Path, decoder: Decoder
) -> None:
    spoil(pets / "cat/3.png")
    (pets / "dog/notes.txt").write_text("good dogs")
    for _ in range(2):
        with pytest.raises(
            DataError,
            match=r"2 of 21 images of .*/pets are damaged: cat/3\.png \(.*\), "
            r"dog/notes\.txt \(cannot identify image file\); repair or remove them, or leave "
            r"them out with data\.skip_damaged = true",
        ) as caught:
            read(pets)
        assert "\n" not in str(caught.value)
    assert len(decoder.since()) == 21
    raw = read(pets, skip_damaged=True)
    assert decoder.since() == []
    assert raw.skipped == ("cat/3.png", "dog/notes.txt")
    assert values(raw) == [0, 2, 4, 8, 10, 12, 14, 16, 18, *range(1, 20, 2)]
    assert raw.targets.tolist() == [0] * 9 + [1] * 10
    draw(pets / "cat/3.png", 6)
    (pets / "dog/notes.txt").unlink()
    assert values(read(pets)) == [*range(0, 20, 2), *range(1, 20, 2)]
    assert decoder.since() == ["cat/3.png"]


def test_read_folder_counts_many_damaged_images(pets: Path) -> None:
    for number in range(8):
        (pets / f"dog/{number}.png").write_text("?")
    with pytest.raises(
        DataError, match=r"8 of 20 images .* dog/4.png \([^)]*\) and 3 more; repair"
    ):
        read(pets)


def test_read_folder_leaves_a_damaged_image_out_of_the_test_split(tmp_path: Path) -> None:
    for number, name in enumerate(("train/a/1", "train/b/2", "test/a/3", "test/b/4", "test/b/5")):
        draw(tmp_path / f"set/{name}.png", number)
    spoil(tmp_path / "set/test/a/3.png")
    raw = read(tmp_path / "set", skip_damaged=True)
    assert raw.test is not None
    assert raw.test[0][:, 0, 0, 0].tolist() == [3, 4]
    assert raw.test[1].tolist() == [1, 1]


def test_read_folder_refuses_a_folder_of_damaged_images_only(pets: Path) -> None:
    for path in pets.glob("*/*.png"):
        path.write_text("?")
    with pytest.raises(
        DataError, match=r"20 of 20 images .* no undamaged image is left for training"
    ):
        read(pets, skip_damaged=True)


def test_skipped_images_are_listed_and_change_the_fingerprint(pets: Path, tmp_path: Path) -> None:
    spoil(pets / "cat/3.png")
    config = DataConfig("folder:pets", skip_damaged=True)
    data = load_data(config, tmp_path, 0, tmp_path / "cache")
    assert data.skipped == ("cat/3.png",)
    assert replace(data, skipped=()).fingerprint != data.fingerprint
    with pytest.raises(DataError, match=r"1 of 20 images .* is damaged: cat/3.png .* leave it out"):
        load_data(DataConfig("folder:pets"), tmp_path, 0, tmp_path / "cache")


@pytest.mark.parametrize("stop_at", [0, 1, 7, 19])
def test_read_folder_continues_interrupted_decoding(
    pets: Path, decoder: Decoder, stop_at: int
) -> None:
    decoder.stop_at = stop_at
    with pytest.raises(KeyboardInterrupt):
        read(pets)
    first, decoder.stop_at = decoder.since(), None
    raw = read(pets)
    assert values(raw) == [*range(0, 20, 2), *range(1, 20, 2)]
    assert len(first) == stop_at
    assert not set(first) & set(decoder.since())


def test_read_folder_keeps_the_order_of_images_that_threads_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first images take longest."""
    monkeypatch.setattr(decoded_images, "_MOST_THREADS", 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    read_image = image_folder.read_image

    def slow(file: Path, channels: int, size: ImageSize | None) -> np.ndarray:
        time.sleep(0.02 if int(file.stem) < 104 else 0.0)
        return read_image(file, channels, size)

    monkeypatch.setattr(image_folder, "read_image", slow)
    for number in range(100, 130):
        draw(tmp_path / f"set/{'ab'[number % 2]}/{number}.png", number)
    counted: list[tuple[int, int | None]] = []
    cache = ImageCache(tmp_path / "cache", 10**9, lambda *count: counted.append(count))
    raw = read_folder(tmp_path / "set", None, cache)
    assert values(raw) == [*range(100, 130, 2), *range(101, 130, 2)]
    assert counted == [(done, 30) for done in range(1, 31)]


def test_read_folder_decodes_partly_written_images_again(pets: Path, decoder: Decoder) -> None:
    """Simulate a power failure while rows and journal were written."""
    expected = values(read(pets))
    decoder.since()
    (journal,) = (pets.parent / "cache").glob("*/*.jsonl")
    (array,) = (pets.parent / "cache").glob("*/*.npy")
    lines = journal.read_text().splitlines()
    for torn in ("\n".join(lines[:9]), "\n".join(lines[:9]) + '\n["cat/9.p', lines[0][:5], ""):
        journal.write_text(torn)
        assert values(read(pets)) == expected
        assert len(decoder.since()) in (12, 13, 20)
    journal.write_text("\n".join(lines[:15]) + "\n")
    array.write_bytes(array.read_bytes()[:400])
    assert values(read(pets)) == expected
    assert len(decoder.since()) == 20


@pytest.mark.parametrize("size", [None, 4])
def test_read_folder_decodes_only_changes_and_removes_old_arrays(
    pets: Path, decoder: Decoder, size: int | None
) -> None:
    read(pets, size)
    decoder.since()
    (pets / "cat/1.png").unlink()
    (pets / "dog/9.png").rename(pets / "cat/9b.png")
    draw(pets / "dog/4.png", 200, (6, 6) if size is None else (70, 60))
    raw = read(pets, size)
    assert sorted(decoder.since()) == ["cat/9b.png", "dog/4.png"]
    assert values(raw) == [0, *range(4, 20, 2), 19, 1, 3, 5, 7, 200, 11, 13, 15, 17]
    assert len([*(pets.parent / "cache").glob("*/*.npy")]) == 1


def test_read_folder_keeps_old_arrays_that_others_map(pets: Path, decoder: Decoder) -> None:
    cache = ImageCache(pets.parent / "cache", 0)
    mapped: RawImages | None = read_folder(pets, None, cache)
    before = values(mapped)
    (pets / "cat/1.png").unlink()
    decoder.since()
    assert len(values(read_folder(pets, None, cache))) == len(before) - 1
    assert decoder.since() == []
    assert len([*(pets.parent / "cache").glob("*/*.npy")]) == 2
    assert values(mapped) == before
    mapped = None
    draw(pets / "cat/99.png", 99)
    read_folder(pets, None, cache)
    assert len([*(pets.parent / "cache").glob("*/*.npy")]) == 1


def test_read_folder_caches_each_size_separately(pets: Path) -> None:
    assert read(pets, 4).images.shape[1:] == (4, 4, 3)
    assert read(pets, 5).images.shape[1:] == (5, 5, 3)
    assert read(pets, 4).images.shape[1:] == (4, 4, 3)


def test_read_folder_scales_16_bit_grey_images_to_8_bits(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[np.newaxis].repeat(4, 0)
    for name in ("a/1.png", "b/2.tif"):
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        Image.fromarray(ramp).save(tmp_path / "set" / name)
    raw = read(tmp_path / "set")
    assert raw.images.shape == (2, 4, 256, 1)
    assert (raw.images[:, :, :, 0] == np.arange(256)).all()
    draw(tmp_path / "set/b/3.png", 7, (256, 4))
    assert (read(tmp_path / "set").images[0, :, :, 1] == np.arange(256)).all()


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_read_folder_refuses_32_bit_pixels(pets: Path, kind: type) -> None:
    Image.fromarray(np.zeros((6, 6), kind)).save(pets / "dog/deep.tif")
    with pytest.raises(
        DataError, match=r"deep.tif: pixels of mode '[IF]' are 32-bit numbers without"
    ):
        read(pets, skip_damaged=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read everything")
def test_read_folder_refuses_an_unreadable_file_despite_skip_damaged(pets: Path) -> None:
    (pets / "dog/3.png").chmod(0)
    with pytest.raises(DataError, match=r"dog/3.png cannot be read .*Permission denied"):
        read(pets, skip_damaged=True)


def test_read_folder_refuses_a_broken_link(pets: Path) -> None:
    (pets / "dog/link.png").symlink_to(pets / "nothing.png")
    with pytest.raises(DataError, match=r"there is no image .*dog/link.png"):
        read(pets, skip_damaged=True)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("README.png", "README.png lies beside the class folders"),
        ("cat/kittens/1.png", "kittens is a folder where an image should be"),
        ("train/cat/1.png", "train/cat is a folder where an image should be"),
    ],
)
def test_read_folder_explains_the_layout_that_it_expects(
    pets: Path, path: str, message: str
) -> None:
    draw(pets / path, 0)
    with pytest.raises(DataError, match=rf"{message}; expected <class>/<image>, or train/<class>"):
        read(pets)


def test_read_folder_refuses_another_folder_beside_train_and_test(tmp_path: Path) -> None:
    for part in ("train", "test", "more"):
        draw(tmp_path / f"set/{part}/a/1.png", 0)
    with pytest.raises(DataError, match="'more' beside test and train"):
        read(tmp_path / "set")


def test_read_folder_refuses_a_class_with_test_images_only(tmp_path: Path) -> None:
    for path in ("train/a", "train/b", "test/c"):
        draw(tmp_path / f"set/{path}/1.png", 0)
    with pytest.raises(
        DataError, match=r"set/test has a class 'c' that .*/set/train does not have"
    ):
        read(tmp_path / "set")


def test_read_folder_refuses_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="set has no class folders"):
        read(tmp_path / "set")
    (tmp_path / "set/cat").mkdir()
    with pytest.raises(DataError, match="set/cat has no images"):
        read(tmp_path / "set")
