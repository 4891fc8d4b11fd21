"""Images of any size become inputs of one size, as deployment makes them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from hwnas.deploy import Preprocessing
from hwnas.deploy.bundles.image_file import Fit, prepared, read_pixels
from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.image_size import ImageSize, read_image
from hwnas.search.data.masks import VOID

sides = st.integers(1, 24)
sizes = st.tuples(sides, st.integers(2, 24))  # PyTorch confuses the layout of images one pixel wide
fits = st.sampled_from(["stretch", "crop"])


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def inputs_of(how: Preprocessing, images: np.ndarray) -> np.ndarray:
    """Return inputs of deployment as grey levels, (N, H, W, C)."""
    return how(images).permute(0, 2, 3, 1).numpy() * 255


def jpeg(height: int, width: int, orientation: int | None = None) -> io.BytesIO:
    """Return a photograph-like JPEG file: smooth shades with some noise."""
    coarse = Image.fromarray(noise(6, 8, 3)).resize((width, height), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    if orientation is not None:
        exif[ExifTags.Base.Orientation] = orientation
    file = io.BytesIO()
    coarse.save(file, "JPEG", quality=90, exif=exif)
    return file


@settings(deadline=None)
@given(
    height=sides, width=st.integers(2, 24), wanted=sizes, fit=fits,
    channels=st.sampled_from([1, 2, 3, 4, 5]), seed=st.integers(0, 99),
)  # fmt: skip
def test_resize_differs_from_deployment_by_rounding_only(
    height: int, width: int, wanted: tuple[int, int], fit: Fit, channels: int, seed: int
) -> None:
    images = noise(2, height, width, channels, seed=seed)
    small = ImageSize(*wanted, fit).resize(images)
    assert small.shape == (2, *wanted, channels)
    plain = Preprocessing(*wanted, channels, (0.0,) * channels, (1.0,) * channels, fit)
    assert np.abs(small - inputs_of(plain, images)).max() <= 1.51


@settings(deadline=None)
@given(
    height=sides, width=st.integers(2, 24), wanted=sizes, fit=fits, seed=st.integers(0, 99)
)  # fmt: skip
def test_shipped_code_prepares_images_as_preprocessing_does(
    height: int, width: int, wanted: tuple[int, int], fit: Fit, seed: int
) -> None:
    image = noise(height, width, 3, seed=seed)
    how = Preprocessing(*wanted, 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), fit)
    np.testing.assert_allclose(prepared(image, how.to_json()), how(image[None]), atol=1e-4)


def test_resize_keeps_flat_colours_and_all_levels() -> None:
    flat = np.arange(256, dtype=np.uint8)[:, None, None, None].repeat(6, 1).repeat(9, 2)
    small = ImageSize(4, 5).resize(flat)
    assert small.shape == (256, 4, 5, 1)
    assert (small == flat[:, :4, :5]).all()


@pytest.mark.parametrize(
    ("shape", "wanted", "kept"),
    [
        ((4, 10), (2, 2), np.s_[:, 3:7]),
        ((10, 4), (2, 2), np.s_[3:7]),
        ((6, 6), (2, 4), np.s_[1:4]),
        ((4, 8), (2, 4), np.s_[:]),
    ],
)
def test_crop_keeps_the_centre_in_the_wanted_aspect_ratio(
    shape: tuple[int, int], wanted: tuple[int, int], kept: tuple[slice, ...]
) -> None:
    image = noise(*shape, 3)
    cropped = ImageSize(*wanted, "crop").resize(image[None])
    assert np.array_equal(cropped, ImageSize(*wanted).resize(image[kept][None]))


@pytest.mark.parametrize(
    ("height", "width", "decoded"),
    [(400, 600, (50, 75)), (100, 150, (50, 75)), (80, 600, (80, 600)), (101, 203, (51, 102))],
)
def test_large_jpegs_are_decoded_at_twice_the_size_or_more(
    height: int, width: int, decoded: tuple[int, int]
) -> None:
    file, size = jpeg(height, width), (25, 25)
    assert read_pixels(file, 3, size).shape[:2] == decoded
    assert read_pixels(file, 3).shape[:2] == (height, width)


def test_jpegs_on_their_side_are_decoded_at_the_upright_size() -> None:
    file = jpeg(100, 400, orientation=6)
    assert read_pixels(file, 3).shape == (400, 100, 3)
    assert read_pixels(file, 3, (100, 25)).shape == (200, 50, 3)
    assert read_pixels(file, 3, (25, 100)).shape == (400, 100, 3)


@pytest.mark.parametrize("fit", ["stretch", "crop"])
def test_reduced_decoding_gives_nearly_the_same_pixels(fit: Fit) -> None:
    size = ImageSize(30, 30, fit)
    found = read_image(jpeg(240, 320), 3, size)
    whole = size.resize(read_pixels(jpeg(240, 320), 3)[None])[0]
    assert np.abs(found.astype(int) - whole).mean() < 1.5


@given(side=st.integers(1, 9), times=st.integers(1, 4), seed=st.integers(0, 99))
def test_resize_masks_repeats_pixels_and_is_reversible(side: int, times: int, seed: int) -> None:
    masks = noise(2, side, side, seed=seed)
    larger = ImageSize(times * side, times * side).resize_masks(masks)
    assert np.array_equal(larger, masks.repeat(times, 1).repeat(times, 2))
    assert np.array_equal(ImageSize(side, side).resize_masks(larger), masks)


def test_resize_masks_creates_no_new_class() -> None:
    masks = np.random.default_rng(0).choice(np.uint8([3, 200, VOID]), (3, 11, 7))
    assert set(np.unique(ImageSize(5, 4).resize_masks(masks))) <= {3, 200, VOID}


def fill(folder: Path) -> None:
    """Write photographs whose left sixth is black in one class and white in the other."""
    for number in range(24):
        image = np.full((8, 24, 3), 128, np.uint8)
        image[:, :4] = 255 * (number % 2)
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def test_data_can_be_cropped_to_a_height_and_a_width(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    fill(tmp_path / "set")
    stretched, cropped = load(size=(4, 6)), load(size=(4, 6), fit="crop")
    assert stretched.image_shape == cropped.image_shape == (4, 6, 3)
    assert set(np.unique(cropped.train.images)) == {128}
    assert np.ptp(stretched.train.images) > 200
    assert stretched.fingerprint != cropped.fingerprint
    assert (stretched.preprocessing.fit, cropped.preprocessing.fit) == ("stretch", "crop")


def test_images_in_their_own_size_are_cropped_by_the_network_input(
    tmp_path: Path, load: Callable[..., ImageData]
) -> None:
    fill(tmp_path / "set")
    data = load(fit="crop")
    assert data.image_shape == (8, 24, 3)
    inputs = inputs_of(data.preprocessing.at(8, 8), data.train.images)
    assert np.ptp(inputs) == 0


def test_images_with_masks_are_not_cropped(tmp_path: Path, load: Callable[..., ImageData]) -> None:
    for number in range(10):
        for kind in ("images", "masks"):
            path = tmp_path / "set" / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.eye(6, 8, dtype=np.uint8)).save(path)
    assert load(size=4).kind == "masks"
    with pytest.raises(DataError, match=r'cannot be cropped.*set data\.fit = "stretch"'):
        load(size=4, fit="crop")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (0, 5)}, r"data.size is \(0, 5\); expected at least 1"),
        ({"fit": "pad"}, "data.fit is 'pad'; expected 'stretch' or 'crop'"),
    ],
)
def test_data_config_refuses_sizes_and_fits(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig("digits", **options)  # type: ignore[arg-type]
