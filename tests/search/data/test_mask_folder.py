from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.search.data.image_data import ImageData


def write(path: Path, pixels: np.ndarray, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(path)


def fill(folder: Path, count: int = 10, size: tuple[int, int] = (6, 4)) -> None:
    """Save images and masks: image k has k + 1 in its upper half, of class 1, and 0 below."""
    for k in range(count):
        mask = np.zeros(size, np.uint8)
        mask[: size[0] // 2] = 1
        write(folder / f"images/{k}.png", mask * (k + 1))
        write(folder / f"masks/{k}.png", mask)


@pytest.mark.parametrize("divided", [False, True])
def test_mask_folder_matches_masks_to_images_by_name(
    tmp_path: Path, load: Callable[..., ImageData], divided: bool
) -> None:
    for part in ("train", "test") if divided else ("",):
        fill(tmp_path / "set" / part)
    (tmp_path / "set" / "classes.txt").write_text("paper\nink\n")
    data = load()
    assert data.class_names == ("paper", "ink")
    assert data.image_shape == (6, 4, 1)
    assert [len(s) for s in (data.train, data.validation, data.test)] == (
        [9, 1, 10] if divided else [7, 1, 2]
    )
    for split in (data.train, data.validation, data.test):
        images, masks = split.take(range(len(split)))
        assert np.array_equal(images[..., 0] > 0, masks == 1)


def test_mask_folder_keeps_the_users_validation_folder(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    for part in ("train", "val", "test"):
        fill(tmp_path / "set" / part)
    data = load()
    assert [len(s) for s in (data.train, data.validation, data.test)] == [10, 10, 10]


def test_mask_folder_reads_palette_masks_as_class_numbers(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    fill(tmp_path / "set")
    for path in (tmp_path / "set/masks").iterdir():
        image = Image.fromarray(np.asarray(Image.open(path)))
        image.putpalette([9, 9, 9, 200, 0, 0])
        image.save(path)
    assert set(np.unique(load().train.targets)) == {0, 1}


def test_size_option_resizes_images_and_masks(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    fill(tmp_path / "set")
    write(tmp_path / "set/images/0.png", np.zeros((9, 5)))
    write(tmp_path / "set/masks/0.png", np.zeros((9, 5)))
    data = load(size=12)
    assert data.train.take([0])[0].shape == (1, 12, 12, 1)
    assert data.train.take([0])[1].shape == (1, 12, 12)
    with pytest.raises(DataError, match="all images of a set need one size"):
        load()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda f: (f / "masks/3.png").unlink(),
            "images has '3', but .*masks does not; each image",
        ),
        (lambda f: (f / "images/3.png").unlink(), "masks has '3', but .*images does not"),
        (
            lambda f: write(f / "masks/3.png", np.zeros((6, 5))),
            r"3\.png has 6 x 5 pixels, but its image 6 x 4",
        ),
        (
            lambda f: write(f / "masks/3.png", np.zeros((6, 4)), "RGB"),
            r"3\.png is a PNG of mode 'RGB'; a mask is a PNG with one channel",
        ),
        (
            lambda f: (f / "masks/3.png").write_text("?"),
            r"1 of 10 images .* is damaged: images/3\.png \(the mask 3\.png: cannot identify",
        ),
        (lambda f: write(f / "masks/3.png", np.full((6, 4), 7)), "class 2 has no training pixels"),
        (
            lambda f: ((f / "masks/3.png").unlink(), write(f / "masks/3.jpg", np.ones((6, 4)))),
            r"3\.jpg is a JPEG of mode 'L'; a mask is a PNG",
        ),
    ],
)
def test_mask_folder_names_an_invalid_or_missing_file(
    tmp_path: Path,
    load: Callable[..., ImageData],
    spoil: Callable[[Path], object],
    message: str,
) -> None:
    fill(tmp_path / "set")
    spoil(tmp_path / "set")
    with pytest.raises(DataError, match=message) as caught:
        load()
    assert "\n" not in str(caught.value)


def test_mask_folder_rotates_an_image_by_its_exif_orientation(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    fill(tmp_path / "set", size=(8, 5))
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in (tmp_path / "set/images").iterdir():
        Image.fromarray(np.asarray(Image.open(path)).T[::-1].copy()).save(path, exif=exif)
    data = load()
    images, masks = data.train.take(range(len(data.train)))
    assert images.shape[1:3] == masks.shape[1:3] == (8, 5)
    assert np.array_equal(images[..., 0] > 0, masks == 1)
