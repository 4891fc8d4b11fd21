from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hwnas.errors import ConfigError, DataError
from hwnas.hashing import content_hash
from hwnas.search import TASKS
from hwnas.search.data import loading
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.data.raw_images import RawImages
from hwnas.search.data.split import Split

Load = Callable[..., ImageData]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(source: str, seed: int = 0, map_above: int | None = None, **options: Any) -> ImageData:
        config = DataConfig(source, **options)
        return load_data(config, tmp_path, seed, tmp_path / "cache", map_above)

    return load


@pytest.fixture
def numbered(tmp_path: Path) -> str:
    """Save images that contain their own number: 0 to 199 for training, 200 to 249 for test."""
    pixels = np.arange(250, dtype=np.uint8)[:, None, None].repeat(6, 1).repeat(5, 2)
    labels = np.arange(250) % 4
    np.savez_compressed(
        tmp_path / "numbered.npz",
        x_train=pixels[:200],
        y_train=labels[:200],
        x_test=pixels[200:],
        y_test=labels[200:],
    )
    return "npz:numbered.npz"


def numbers(split: Split) -> list[int]:
    return split.take(range(len(split)))[0][:, 0, 0, 0].tolist()


def test_load_data_splits_the_digits_into_three_parts(load: Load) -> None:
    data = load("digits")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [1294, 144, 359]
    assert data.image_shape == (8, 8, 1)
    assert data.class_names == tuple("0123456789")
    assert data.train.images.max() == 255
    together = np.concatenate([p.positions for p in (data.train, data.validation, data.test)])
    assert sorted(together) == list(range(1797))


def test_load_data_puts_no_image_in_two_splits(load: Load, numbered: str) -> None:
    data = load(numbered)
    assert sorted(numbers(data.train) + numbers(data.validation)) == list(range(200))
    assert sorted(numbers(data.test)) == list(range(200, 250))
    assert np.bincount(data.validation.targets).tolist() == [5, 5, 5, 5]


def test_load_data_keeps_targets_with_their_images(load: Load, numbered: str) -> None:
    data = load(numbered)
    for split in (data.train, data.validation, data.test):
        assert [n % 4 for n in numbers(split)] == split.targets.tolist()


@pytest.mark.parametrize("source", ["digits", "npz:numbered.npz"])
def test_seed_changes_the_validation_split_but_not_the_test_split(
    load: Load, numbered: str, source: str
) -> None:
    one, same, other = load(source, seed=3), load(source, seed=3), load(source, seed=4)
    assert one.fingerprint == same.fingerprint
    assert set(one.validation.positions) != set(other.validation.positions)
    assert one.test.positions.tolist() == other.test.positions.tolist()
    assert one.fingerprint != other.fingerprint


def test_limits_shorten_the_splits_and_large_ones_change_nothing(load: Load, numbered: str) -> None:
    data = load(numbered, train_limit=40, test_limit=10, validation_fraction=0.25)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [30, 10, 10]
    assert numbers(data.test) == numbers(load(numbered).test)[:10]
    everything = load(numbered, train_limit=10**6, test_limit=10**6)
    assert everything.fingerprint == load(numbered).fingerprint


def test_load_data_names_a_limit_that_removes_a_class(load: Load) -> None:
    with pytest.raises(DataError, match=r"class \d .* has no training images; .*train_limit"):
        load("digits", train_limit=12)


def test_size_option_resizes_any_source(load: Load, numbered: str) -> None:
    data = load(numbered, size=12)
    assert data.image_shape == (12, 12, 1)
    assert sorted(numbers(data.train) + numbers(data.validation)) == list(range(200))
    assert sorted(numbers(data.test)) == list(range(200, 250))
    assert load("digits", size=16, map_above=0).image_shape == (16, 16, 1)


def test_load_data_maps_a_large_set_with_the_same_fingerprint(load: Load, numbered: str) -> None:
    small, large = load(numbered), load(numbered, map_above=1000)
    assert not isinstance(small.train.images, np.memmap)
    assert isinstance(large.train.images, np.memmap)
    assert isinstance(large.test.images, np.memmap)
    assert small.fingerprint == large.fingerprint
    again = pickle.loads(pickle.dumps(large))
    assert again.fingerprint == large.fingerprint
    assert isinstance(again.validation.images, np.memmap)


def test_runs_share_decoded_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        path = tmp_path / f"set/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(path)
    decoded: list[int] = []

    def load(cache: str | None, seed: int) -> ImageData:
        decoded.clear()
        config = DataConfig("folder:set", cache=cache)
        return load_data(config, tmp_path, seed, on_decoded=lambda done, _: decoded.append(done))

    for cache, folder in ((None, tmp_path / "home/images"), ("here", tmp_path / "here")):
        monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
        load(cache, 0)
        assert len(decoded) == 20
        assert [*folder.glob("*/*.npy")]
        load(cache, 1)
        assert not decoded


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(20, 40), min_size=2, max_size=4),
    folds=st.integers(2, 5),
    grouped=st.booleans(),
    seed=st.integers(0, 99),
)
def test_folds_divide_the_images_to_train_on(
    counts: list[int], folds: int, grouped: bool, seed: int
) -> None:
    classes = np.repeat(np.arange(len(counts)), counts)
    images = np.zeros((len(classes), 2, 2, 1), np.uint8)
    groups = np.arange(len(classes)) // 2 if grouped else None
    raw = RawImages(images, classes, test=(images.copy(), classes), groups=groups)
    data = loading._divided(raw, DataConfig("digits", folds=folds), seed)
    parts = [fold.positions for fold in data.folds]
    assert sorted(np.concatenate(parts)) == [*range(len(classes))]
    assert len(data.rounds) == folds
    for fold, each in zip(data.folds, data.rounds, strict=True):
        assert np.array_equal(each.validation.positions, fold.positions)
        assert set(each.train.positions) == set(range(len(classes))) - set(fold.positions)
        assert abs(len(fold) - len(classes) / folds) <= (6 if grouped else 1)
        if grouped:
            assert not {*(fold.positions // 2)} & {*(each.train.positions // 2)}
    assert data.rounds[0] is data


def test_folds_change_the_fingerprint_and_need_a_source_without_validation(
    load: Load, tmp_path: Path
) -> None:
    assert len({load("digits", folds=folds).fingerprint for folds in (1, 2, 3)}) == 3
    x, y = np.zeros((9, 2, 2, 1), np.uint8), np.arange(9) % 3
    parts = ("train", "val", "test")
    np.savez(tmp_path / "a.npz", **{f"x_{p}": x for p in parts}, **{f"y_{p}": y for p in parts})
    with pytest.raises(ConfigError, match="has a validation part of its own; leave"):
        load("npz:a.npz", folds=3)


def test_channel_statistics_equal_those_of_the_training_pixels(load: Load) -> None:
    data = load("digits")
    images, _ = data.train.take(range(len(data.train)))
    assert data.channel_mean == pytest.approx((images / 255).mean(axis=(0, 1, 2)), rel=0.03)
    assert data.channel_std == pytest.approx((images / 255).std(axis=(0, 1, 2)), rel=0.03)


def test_given_channel_statistics_replace_those_of_the_images(load: Load) -> None:
    plain, own = load("digits"), load("digits", mean=(0.25,), std=(0.5,))
    assert (own.channel_mean, own.channel_std) == ((0.25,), (0.5,))
    assert own.manifest.fingerprint == plain.manifest.fingerprint
    tasks = [TASKS["classification"](data=data) for data in (plain, own)]
    assert content_hash(tasks[0]) != content_hash(tasks[1]), "what is learned depends on them"
    white = torch.full((1, 8, 8, 1), 255, dtype=torch.uint8)
    assert tasks[1].preprocessing(white).flatten().tolist() == pytest.approx([1.5] * 64)
    with pytest.raises(DataError, match="have 3 numbers; expected 1, one for each channel"):
        load("digits", mean=(0.5,) * 3, std=(0.2,) * 3)
    with pytest.raises(ConfigError, match="data has std, but no mean; give both"):
        load("digits", std=(0.5,))


def test_channel_std_is_positive_for_images_of_one_colour() -> None:
    images = np.full((4, 2, 2, 3), 51, dtype=np.uint8)
    parts = [Split(images.copy(), np.array([0, 1, 0, 1]), np.arange(4)) for _ in range(3)]
    data = ImageData(*parts, ("a", "b"))
    assert data.channel_mean == pytest.approx((0.2, 0.2, 0.2))
    assert min(data.channel_std) > 0


def test_fingerprint_changes_with_pixels_labels_and_class_names(load: Load, numbered: str) -> None:
    data = load(numbered)
    brighter = replace(data.train, images=data.train.images + np.uint8(1))
    relabelled = replace(data.test, image_targets=data.test.image_targets[::-1].copy())
    changed = [
        replace(data, train=brighter),
        replace(data, test=relabelled),
        replace(data, class_names=("a", "b", "c", "d")),
    ]
    assert len({data.fingerprint, *(other.fingerprint for other in changed)}) == 4


def test_load_data_numbers_classes_without_names(load: Load, numbered: str) -> None:
    assert load(numbered).class_names == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.full(200, 5)}, "class 0 has no training images, but class 5 has"),
        (
            {"y_train": np.zeros(200, int), "y_test": np.zeros(50, int)},
            r"the data have the classes \('0',\); expected two or more",
        ),
        ({"y_test": np.full(50, 9)}, "test labels go from 9 to 9, but the 4 classes from 0 to 3"),
        ({"class_names": ["a", "b", "c"]}, "labels go from 0 to 3, but the 3 classes from 0 to 2"),
        ({"class_names": list("abcde")}, r"class 4 \('e'\) has no training images"),
        (
            {"x_test": np.zeros((50, 7, 5), np.uint8)},
            r"training images are \(6, 5, 1\) but test images are \(7, 5, 1\)",
        ),
    ],
)
def test_load_data_refuses_arrays_that_contradict_each_other(
    load: Load, numbered: str, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with np.load(tmp_path / "numbered.npz") as arrays:
        np.savez(tmp_path / "bad.npz", **{**arrays, **change})
    with pytest.raises(DataError, match=message):
        load("npz:bad.npz")


def test_image_data_requires_class_names_for_class_targets(load: Load, numbered: str) -> None:
    data = load(numbered)
    with pytest.raises(DataError, match=r"required for classes, int64 \(N,\), masks, uint8"):
        replace(data, class_names=None)


def test_image_data_refuses_an_image_in_two_splits(load: Load) -> None:
    data = load("digits")
    with pytest.raises(DataError, match=r"image \d+ is in the training and in the test split"):
        replace(data, test=data.train.first(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_fraction": 0.0}, "validation_fraction is 0.0; expected a fraction between"),
        ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
        ({"size": 0}, "data.size is 0; expected at least 1"),
        ({"train_limit": 0}, "data.train_limit is 0"),
        ({"test_limit": -3}, "data.test_limit is -3"),
    ],
)
def test_data_config_refuses_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig("digits", **options)


class TestRealSets:
    def test_cifar10_has_the_known_classes_and_channel_statistics(
        self, load: Load, hwnas_data: Path
    ) -> None:
        data = load(f"npz:{hwnas_data}/images/cifar10_mini.npz")
        assert [len(part) for part in (data.train, data.validation, data.test)] == [900, 100, 500]
        assert data.image_shape == (32, 32, 3)
        assert data.class_names is not None
        assert len(data.class_names) == 10
        # The means of the whole set, .491 .482 .447, and deviations, .247 .244 .262.
        assert data.channel_mean == pytest.approx((0.491, 0.482, 0.447), abs=0.02)
        assert data.channel_std == pytest.approx((0.247, 0.244, 0.262), abs=0.02)

    def test_fashion_mnist_is_stratified_and_mapped(
        self, load: Load, hwnas_data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HWNAS_DATA", str(hwnas_data))
        data = load("npz:$HWNAS_DATA/images/fashion_mnist.npz", map_above=10**7)
        parts = [len(part) for part in (data.train, data.validation, data.test)]
        assert parts == [54000, 6000, 10000]
        assert np.bincount(data.validation.targets).tolist() == [600] * 10
        assert isinstance(data.train.images, np.memmap)
        assert len(pickle.dumps(data)) < 2 * 16 * sum(parts)


class TestMasks:
    @pytest.fixture
    def arrays(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        masks = rng.integers(0, 3, (50, 8, 6), dtype=np.uint8)
        masks[:, 0] = 255
        images = masks * np.uint8(40)
        return {
            "x_train": images[:40],
            "y_train": masks[:40],
            "x_test": images[40:],
            "y_test": masks[40:],
        }

    @pytest.fixture
    def own(self, tmp_path: Path) -> Callable[..., ImageData]:
        def loaded(arrays: Mapping[str, Any], map_above: int = 10**9, **options: Any) -> ImageData:
            np.savez(tmp_path / "masks.npz", **arrays)
            config = DataConfig("npz:masks.npz", **options)
            return load_data(config, tmp_path, 0, tmp_path / "cache", map_above)

        return loaded

    def test_stay_with_their_images(
        self, own: Callable[..., ImageData], arrays: dict[str, Any]
    ) -> None:
        for map_above in (10**9, 1000):
            data = own(arrays, map_above)
            assert data.kind == "masks"
            assert data.class_names == ("0", "1", "2")
            assert [len(s) for s in (data.train, data.validation, data.test)] == [36, 4, 10]
            for split in (data.train, data.validation, data.test):
                images, masks = split.take(range(len(split)))
                assert isinstance(split.image_targets, np.memmap) == (map_above == 1000)
                known = masks != 255
                assert np.array_equal(images[..., 0][known], masks[known] * 40)

    def test_are_resized_to_the_nearest_pixel(
        self, own: Callable[..., ImageData], arrays: dict[str, Any]
    ) -> None:
        for map_above in (10**9, 1000):
            data = own(arrays, map_above, size=12)
            images, masks = data.test.take(range(10))
            assert images.shape == (10, 12, 12, 1)
            assert masks.shape == (10, 12, 12)
            assert set(np.unique(masks)) == {0, 1, 2, 255}
            assert np.array_equal(masks[:, :, ::2], masks[:, :, 1::2]), "six columns became twelve"

    def test_change_the_fingerprint(
        self, own: Callable[..., ImageData], arrays: dict[str, Any]
    ) -> None:
        other = {**arrays, "y_train": arrays["y_train"][:, ::-1].copy()}
        assert own(arrays).fingerprint != own(other).fingerprint

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda a: {"y_train": a["y_train"] / 2},
                r"float64 with shape \(40, 8, 6\); masks are",
            ),
            (
                lambda a: {"y_test": a["y_test"].transpose(0, 2, 1)},
                "y_test has masks of 6 x 8 pixels for images of 8 x 6; give each image",
            ),
            (lambda a: {"y_test": a["y_test"][:9]}, "10 images in x_test but 9 targets in y_test"),
            (
                lambda a: {"class_names": ["a", "b"]},
                "training labels go from 0 to 2, but the 2 classes from 0 to 1",
            ),
            (
                lambda a: {"class_names": list("abcd")},
                r"class 3 \('d'\) has no training pixels; add some",
            ),
            (
                lambda a: {"y_train": np.where(a["y_train"] == 1, 7, a["y_train"])},
                "class 1 has no training pixels, but class 7 has; number classes from 0",
            ),
            (
                lambda a: {"y_test": np.full_like(a["y_test"], 255)},
                "no pixel of the test masks has a class: all are 255",
            ),
            (lambda a: {"y_train": a["y_train"][:, 0, 0] % 2}, r"\(10, 8, 6\); expected \(N,\)"),
            (lambda a: {"y_train": a["y_train"].astype(int) - 1}, "goes from -1 to 254; the class"),
        ],
    )
    def test_are_refused_if_they_do_not_match_the_images_or_classes(
        self,
        own: Callable[..., ImageData],
        arrays: dict[str, Any],
        change: Callable[[dict[str, Any]], dict[str, Any]],
        message: str,
    ) -> None:
        with pytest.raises(DataError, match=message) as caught:
            own({**arrays, **change(arrays)})
        assert "\n" not in str(caught.value)
