from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.search.data import DataConfig, load_data
from hwnas.search.image_cache import ImageCache
from hwnas.search.image_folder import read_folder
from hwnas.search.raw_images import RawImages


def draw(path: Path, value: int, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).convert(mode).save(path)


def read(folder: Path, size: int | None = None) -> RawImages:
    return read_folder(folder, size, ImageCache(folder.parent / "cache", 10**9))


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Ten cats with even pixels, ten dogs with odd ones."""
    for number in range(10):
        draw(tmp_path / f"pets/cat/{number}.png", 2 * number)
        draw(tmp_path / f"pets/dog/{number}.png", 2 * number + 1)
    return tmp_path / "pets"


def test_one_folder_a_class(pets: Path) -> None:
    raw = read(pets)
    assert raw.test is None
    assert raw.class_names == ("cat", "dog")
    assert raw.images.shape == (20, 6, 6, 3)
    assert (raw.images[:, 0, 0, 0] % 2).tolist() == raw.targets.tolist()


def test_a_fifth_of_an_undivided_folder_is_for_testing(pets: Path, tmp_path: Path) -> None:
    config = DataConfig("folder:pets")
    one, other = (load_data(config, tmp_path, seed, tmp_path / "cache") for seed in (0, 1))
    assert [len(part) for part in (one.train, one.validation, one.test)] == [14, 2, 4]
    assert np.bincount(one.test.targets).tolist() == [2, 2]
    assert one.test.positions.tolist() == other.test.positions.tolist()


def test_the_users_own_division_is_kept(tmp_path: Path) -> None:
    for number, name in enumerate(("train/cat/a", "train/dog/a", "train/dog/b", "test/dog/a")):
        draw(tmp_path / f"pets/{name}.png", number)
    raw = read(tmp_path / "pets")
    assert raw.targets.tolist() == [0, 1, 1]
    assert raw.test is not None
    assert raw.test[0][0, 0, 0].tolist() == [3, 3, 3]
    assert raw.test[1].tolist() == [1]


def test_grey_only_where_all_are_grey(tmp_path: Path) -> None:
    draw(tmp_path / "set/a/1.png", 10, mode="L")
    draw(tmp_path / "set/b/1.png", 20, mode="1")
    assert read(tmp_path / "set").images.shape == (2, 6, 6, 1)
    draw(tmp_path / "set/b/2.png", 30, mode="RGBA")
    assert read(tmp_path / "set").images.shape == (3, 6, 6, 3)


def test_size_makes_squares_of_all(pets: Path) -> None:
    draw(pets / "cat/wide.jpg", 100, (40, 10))
    with pytest.raises(DataError, match=r"cat/wide.jpg has shape \(10, 40, 3\) .* data.size"):
        read(pets)
    raw = read(pets, size=5)
    assert raw.images.shape == (21, 5, 5, 3)
    assert 100 in raw.images[:, 0, 0, 0]


def test_names_that_begin_with_a_dot_are_left_out(pets: Path) -> None:
    (pets / ".DS_Store").write_text("")
    (pets / "cat/.thumbs").write_text("")
    assert len(read(pets).images) == 20


def test_a_changed_folder_is_read_again(pets: Path) -> None:
    read(pets)
    draw(pets / "dog/more.png", 99)
    assert len(read(pets).images) == 21


def test_what_is_not_an_image_is_named(pets: Path) -> None:
    (pets / "dog/notes.txt").write_text("good dogs")
    with pytest.raises(DataError, match=r"dog/notes.txt is not an image .* take it out"):
        read(pets)


def test_a_cut_image_is_named(pets: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(noise).save(pets / "dog/cut.png")
    whole = (pets / "dog/cut.png").read_bytes()
    (pets / "dog/cut.png").write_bytes(whole[:80])
    with pytest.raises(DataError, match=r"dog/cut.png cannot be read as an image"):
        read(pets)


def test_deep_pixels_are_refused(pets: Path) -> None:
    Image.fromarray(np.zeros((6, 6), np.uint16)).save(pets / "dog/deep.png")
    with pytest.raises(DataError, match=r"deep.png has pixels of mode 'I;16'; expected 8 bits"):
        read(pets)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("README.png", "README.png lies beside the class folders"),
        ("cat/kittens/1.png", "kittens is a folder where an image should be"),
        ("train/cat/1.png", "train/cat is a folder where an image should be"),
    ],
)
def test_another_layout_is_explained(pets: Path, path: str, message: str) -> None:
    draw(pets / path, 0)
    with pytest.raises(DataError, match=rf"{message}; expected <class>/<image>, or train/<class>"):
        read(pets)


def test_something_beside_train_and_test_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test", "val"):
        draw(tmp_path / f"set/{part}/a/1.png", 0)
    with pytest.raises(DataError, match="'val' beside train and test"):
        read(tmp_path / "set")


def test_a_class_only_for_testing_is_refused(tmp_path: Path) -> None:
    for path in ("train/a", "train/b", "test/c"):
        draw(tmp_path / f"set/{path}/1.png", 0)
    with pytest.raises(DataError, match=r"set/test has a class 'c' that .*/set/train has not"):
        read(tmp_path / "set")


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="set has no class folders"):
        read(tmp_path / "set")
    (tmp_path / "set/cat").mkdir()
    with pytest.raises(DataError, match="set/cat has no images"):
        read(tmp_path / "set")
