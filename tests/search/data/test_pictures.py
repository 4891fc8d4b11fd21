from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.data.pictures import patch_places, scaled_down, upscale_of
from hwnas.search.data.raw_images import RawImages

sides = st.integers(1, 40)


@given(height=sides, width=sides, rows=sides, columns=sides)
def test_patches_cover_a_picture_and_stay_inside(
    height: int, width: int, rows: int, columns: int
) -> None:
    patch = min(rows, height), min(columns, width)
    covered = np.zeros((height, width), bool)
    places = list(patch_places((height, width), patch))
    for top, left in places:
        assert top + patch[0] <= height
        assert left + patch[1] <= width
        covered[top : top + patch[0], left : left + patch[1]] = True
    assert covered.all()
    assert len(places) == -(-height // patch[0]) * -(-width // patch[1]), "no more than needed"


@given(factor=st.integers(1, 4), colour=st.tuples(*[st.integers(0, 255)] * 3))
def test_scaling_a_plain_picture_down_keeps_its_colour(
    factor: int, colour: tuple[int, int, int]
) -> None:
    picture = np.full((6 * factor, 4 * factor, 3), colour, np.uint8)
    small = scaled_down(picture, factor)
    assert small.shape == (6, 4, 3)
    assert (small == np.array(colour, np.uint8)).all()


@pytest.mark.parametrize(
    ("image", "picture", "factor"),
    [
        ((8, 6), (16, 12), 2),
        ((8, 8), (8, 8), 1),
        ((8, 6), (16, 18), None),
        ((8, 8), (20, 20), None),
    ],
)
def test_factor_of_sizes_is_whole_and_the_same_in_both_directions(
    image: tuple[int, int], picture: tuple[int, int], factor: int | None
) -> None:
    assert upscale_of(image, picture) == factor


def photograph(seed: int, height: int, width: int) -> np.ndarray:
    """Return a smooth picture, uint8 (height, width, 3)."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, count in (("train", 6), ("test", 2)):
        (tmp_path / "photos" / part).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(photograph(i, 41 + i, 50)).save(tmp_path / "photos" / part / f"{i}.png")
    return tmp_path / "photos"


def load(folder: Path, **options: object) -> ImageData:
    config = DataConfig(f"upscale2:{folder}", **{"size": 8, "validation_fraction": 0.3, **options})
    return load_data(config, folder.parent, 0, folder.parent / "cache")


def test_images_are_patches_of_the_pictures_scaled_down(folder: Path) -> None:
    data = load(folder)
    assert data.kind == "pictures"
    assert data.class_names is None
    assert data.image_shape == (8, 8, 3)
    images, pictures = data.test.take(range(len(data.test)))
    assert pictures.shape == (2 * 3 * 4, 16, 16, 3), "20 x 25 and 21 x 25 pixels, scaled down"
    found = 0
    for i in range(2):
        whole = photograph(i, 41 + i, 50)[: (40, 42)[i]]
        small = scaled_down(whole, 2)
        for top, left in patch_places(small.shape[:2], (8, 8)):
            image = small[top : top + 8, left : left + 8]
            picture = whole[2 * top : 2 * top + 16, 2 * left : 2 * left + 16]
            equal = [
                (image == a).all() and (picture == b).all()
                for a, b in zip(images, pictures, strict=True)
            ]
            found += any(equal)
    assert found == len(images)


def test_patches_of_a_picture_are_in_one_split(folder: Path) -> None:
    data = load(folder)
    of_picture = np.repeat(np.arange(6), 3 * 4)
    train, validation = (
        set(of_picture[split.positions]) for split in (data.train, data.validation)
    )
    assert train
    assert validation
    assert not train & validation
    assert len(train | validation) == 6


def test_pictures_need_no_parts_and_patches_have_a_default_size(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(5):
        Image.fromarray(photograph(i, 130, 140)[..., 0]).save(tmp_path / "photos" / f"{i}.png")
    data = load(tmp_path / "photos", size=None)
    assert data.image_shape == (32, 32, 1), "grey pictures have one channel"
    assert len(data.test)


def test_changed_picture_changes_the_fingerprint(folder: Path) -> None:
    before = load(folder).fingerprint
    assert load(folder).fingerprint == before
    assert load(folder, size=10).fingerprint != before
    Image.fromarray(photograph(9, 44, 50)).save(folder / "train" / "3.png")
    assert load(folder).fingerprint != before


def test_damaged_picture_is_named_once_or_left_out(folder: Path) -> None:
    whole = (folder / "train" / "2.png").read_bytes()
    (folder / "train" / "2.png").write_bytes(whole[: len(whole) // 2])
    (folder / "train" / "4.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"train/2.png \(.*, train/4.png \(.*data.skip_damaged"):
        load(folder)
    data = load(folder, skip_damaged=True)
    assert data.skipped == ("train/2.png", "train/4.png")
    assert len(data.train) + len(data.validation) == 4 * 3 * 4


def test_pictures_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0.png has 41 x 50 pixels .* patches need 48 x 48; lower"):
        load(folder, size=24)
    with pytest.raises(ConfigError, match="pictures are cut into patches"):
        load(folder, fit="crop")
    (folder / "train" / "class").mkdir()
    with pytest.raises(DataError, match="has folders; expected picture files, or train/"):
        load(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no pictures; expected picture files"):
        load(tmp_path / "empty")
    (tmp_path / "odd" / "test").mkdir(parents=True)
    with pytest.raises(DataError, match="has test; expected picture files"):
        load(tmp_path / "odd")


def arrays(**changed: np.ndarray) -> dict[str, np.ndarray]:
    given = {f"x_{part}": np.zeros((4, 8, 8, 3), np.uint8) for part in ("train", "test")}
    given |= {f"y_{part}": np.zeros((4, 16, 16, 3), np.uint8) for part in ("train", "test")}
    return given | changed


def test_arrays_of_pictures_are_told_from_masks() -> None:
    assert RawImages.of(arrays(), "here").targets.ndim == 4
    masks = {f"y_{part}": np.ones((4, 8, 8, 1), np.uint8) for part in ("train", "test")}
    assert RawImages.of(arrays(**masks), "here").targets.shape == (4, 8, 8)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((4, 16, 20, 3), np.uint8), "both sides must be the same whole number of times"),
        (np.zeros((4, 16, 16, 4), np.uint8), "with the channels of their images"),
        (np.zeros((3, 16, 16, 3), np.uint8), "4 images in x_test but 3 targets"),
    ],
)
def test_arrays_of_pictures_that_do_not_fit_are_refused(picture: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        RawImages.of(arrays(y_test=picture), "here")


def test_other_size_is_refused_for_arrays_with_pictures(tmp_path: Path) -> None:
    np.savez(tmp_path / "pictures.npz", **arrays(
        x_train=np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    ))  # fmt: skip
    config = DataConfig("npz:pictures.npz", validation_fraction=0.3, size=16)
    with pytest.raises(DataError, match="pictures as targets keep their 8 x 8 pixels"):
        load_data(config, tmp_path, 0, tmp_path / "cache")
