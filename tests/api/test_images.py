"""Images that a Python program gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from hwnas.api.images import GivenImages
from hwnas.errors import ConfigError, DataError
from hwnas.search import DataConfig, ImageData, load_data
from hwnas.search.data.image_archive import write_npz

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8)
LABELS = np.arange(40) % 4


def stored(data: Any, tmp_path: Path) -> ImageData:
    """Load data as a search does that was started with it."""
    images = GivenImages.of(data, tmp_path / "run", None)
    write_npz(tmp_path / "run" / "images.npz", images.arrays)
    return load_data(DataConfig(**images.table), tmp_path, 0, tmp_path / "cache")


class Photos(Dataset[tuple[Any, int]]):
    """Data set of torch with named classes; `convert` gives the form of an image."""

    classes = ("a", "b", "c", "d")

    def __init__(self, convert: Callable[[npt.NDArray[np.uint8]], Any]) -> None:
        self._convert = convert

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._convert(PIXELS[index]), int(LABELS[index])


def all_pixels(data: ImageData) -> list[bytes]:
    parts = (data.train, data.validation, data.test)
    return sorted(p.take([row])[0].tobytes() for p in parts for row in range(len(p)))


@pytest.mark.parametrize(
    "convert",
    [
        lambda pixels: pixels,
        Image.fromarray,
        lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
        lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1) / 255,
    ],
    ids=["numpy", "pillow", "tensor of bytes", "tensor of shares"],
)
def test_data_set_of_torch_keeps_its_pixels_and_class_names(
    convert: Callable[[npt.NDArray[np.uint8]], Any], tmp_path: Path
) -> None:
    data = stored(Photos(convert), tmp_path)
    assert data.class_names == Photos.classes
    assert all_pixels(data) == sorted(image.tobytes() for image in PIXELS)


def test_list_of_two_arrays_is_a_pair(tmp_path: Path) -> None:
    assert all_pixels(stored([PIXELS, LABELS], tmp_path)) == all_pixels(
        stored((PIXELS, LABELS), tmp_path / "again")
    )


def test_item_that_is_no_pair_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"item 0 of the data set is a int; expected \(image, lab"):
        GivenImages.of([1, 2], tmp_path, None)  # type: ignore[arg-type]


def test_pair_of_arrays_holds_out_a_fifth_of_each_class(tmp_path: Path) -> None:
    data = stored((PIXELS, LABELS), tmp_path)
    assert len(data.test) == 8
    assert np.bincount(data.test.targets).tolist() == [2, 2, 2, 2]
    again = stored((PIXELS, LABELS), tmp_path)
    assert again.fingerprint == data.fingerprint


def test_tensors_are_arrays(tmp_path: Path) -> None:
    tensors = torch.from_numpy(PIXELS), torch.from_numpy(LABELS)
    assert stored(tensors, tmp_path).fingerprint == stored((PIXELS, LABELS), tmp_path).fingerprint


def test_mapping_keeps_the_test_part(tmp_path: Path) -> None:
    arrays = {"x_train": PIXELS[:30], "y_train": LABELS[:30]}
    data = stored({**arrays, "x_test": PIXELS[30:], "y_test": LABELS[30:]}, tmp_path)
    assert len(data.test) == 10
    sets = {"train": Photos(lambda pixels: pixels), "test": Photos(lambda pixels: pixels)}
    assert len(stored(sets, tmp_path).test) == 40


def test_masks_are_stored(tmp_path: Path) -> None:
    masks = (PIXELS[..., 0] > 128).astype(np.uint8)
    assert stored((PIXELS, masks), tmp_path).kind == "masks"


def test_image_data_and_functions_without_a_name_need_no_file() -> None:
    data = load_data(DataConfig("digits"), Path(), 0, Path("unused"))
    assert GivenImages.of(data, None, None).data is data
    assert GivenImages.of(lambda: data, None, None).data is data
    assert GivenImages.of(data, None, None).table == {"source": "python:data"}


@given(st.integers(0, 3), st.integers(1, 7))
def test_stored_arrays_are_written_again_only_if_they_changed(
    tmp_path_factory: pytest.TempPathFactory, row: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "images.npz"
    arrays = {"x": np.zeros((4, 2), np.uint8)}
    write_npz(path, arrays)
    before = path.stat().st_ino
    write_npz(path, {"x": arrays["x"].copy()})
    assert path.stat().st_ino == before
    arrays["x"][row] = value
    write_npz(path, arrays)
    assert path.stat().st_ino != before
    assert np.load(path)["x"][row, 0] == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((PIXELS, LABELS, LABELS), "data is a tuple of 3; expected (images, labels)"),
        ((PIXELS, LABELS[:3]), "40 images but 3 labels"),
        ((PIXELS.astype(float), LABELS), "expected uint8, pixels from 0 to 255"),
        (PIXELS, "data is a ndarray; expected a path, arrays (images, labels)"),
        ({"x_train": PIXELS}, "has no y_train, x_test, y_test"),
        ({"train": PIXELS, "valid": PIXELS}, "data has valid; expected data sets 'train'"),
        ({"train": 3}, "data has train; expected data sets"),
        (Photos(lambda pixels: torch.randn(3, 6, 6)), "Remove the normalisation"),
        (Photos(lambda pixels: pixels[: 2 + pixels[0, 0, 0] % 3]), "images have different shapes"),
        (Photos(lambda pixels: "picture"), "expected a Pillow image"),
        ([], "the data set is empty"),
        (lambda: 3, "returns a int; expected an ImageData"),
    ],
)
def test_wrong_images_are_refused_in_one_line(data: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError)) as raised:
        GivenImages.of(data, None, None)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tensor_data_set_is_read(tmp_path: Path) -> None:
    tensors = TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.from_numpy(LABELS))
    assert all_pixels(stored(tensors, tmp_path)) == sorted(image.tobytes() for image in PIXELS)
