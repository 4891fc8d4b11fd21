from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.errors import DataError
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.raw_images import RawImages, spaced_rows

X = np.zeros((6, 4, 5), np.uint8)


def raw(y: Any, **more: Any) -> RawImages:
    return RawImages.of({"x_train": X, "y_train": y, "x_test": X, "y_test": y, **more}, "here")


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 2, 0, 1, 2], np.arange(6, dtype=np.uint8), np.arange(6.0), np.arange(6)[:, None]],
    ids=["list", "uint8", "whole floats", "column"],
)
def test_raw_images_convert_labels_to_int64(labels: Any) -> None:
    targets = raw(labels).targets
    assert targets.dtype == np.int64
    assert targets.tolist() == np.ravel(labels).tolist()


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ([0, 1, 0.5, 1, 0, 1], 1),
        (np.arange(6.0)[:, None], 1),
        (np.arange(12.0).reshape(6, 2), 2),
        (np.arange(12).reshape(6, 2) % 2, 2),
        (np.eye(6, 3, dtype=bool), 3),
    ],
    ids=["fractions", "column of floats", "floats", "whole numbers", "truth values"],
)
def test_raw_images_convert_values_to_float32_columns(given: Any, columns: int) -> None:
    targets = raw(given).targets
    assert (targets.dtype, targets.shape) == (np.float32, (6, columns))
    assert targets.ravel().tolist() == np.ravel(given).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_raw_images_refuse_numbers_that_are_not_finite(bad: float) -> None:
    with pytest.raises(DataError, match=rf"here: y_train\[2\] is {bad}; expected finite numbers"):
        raw([0, 1, bad, 1, 0, 1])


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf])
def test_raw_images_refuse_fractions_as_classes_with_names(bad: float) -> None:
    with pytest.raises(DataError, match=rf"here: y_train\[2\] is {bad}; a class is a whole number"):
        raw([0, 1, bad, 1, 0, 1], class_names=["a", "b"])


@pytest.mark.parametrize("names", [np.array([b"a", b"b"]), ("a", "b")])
def test_raw_images_convert_class_names_to_text(names: Any) -> None:
    assert raw([0, 1] * 3, class_names=names).class_names == ("a", "b")


def test_raw_images_check_the_validation_part_like_the_others() -> None:
    found = raw([0, 1] * 3, x_val=X[:2], y_val=[1, 0]).validation
    assert found is not None
    assert (found[0].shape, found[1].tolist()) == ((2, 4, 5, 1), [1, 0])
    with pytest.raises(DataError, match="2 images in x_val but 1 targets in y_val"):
        raw([0, 1] * 3, x_val=X[:2], y_val=[1])
    with pytest.raises(DataError, match="here has no y_val"):
        raw([0, 1] * 3, x_val=X[:2])


def test_raw_images_number_the_groups() -> None:
    groups = raw([0, 1] * 3, groups=["b", "a", "b", "c", "a", "a"]).groups
    assert groups is not None
    assert groups.tolist() == [1, 0, 1, 2, 0, 0]
    with pytest.raises(DataError, match=r"groups is int64 of shape \(5,\); .* each of 6 images"):
        raw([0, 1] * 3, groups=np.arange(5))


def test_resized_returns_itself_for_the_same_size(tmp_path: Path) -> None:
    square = RawImages(np.zeros((2, 4, 4, 1), np.uint8), np.arange(2))
    assert square.resized(ImageSize(4, 4), ImageCache(tmp_path, 0)) is square
    assert square.resized(ImageSize(2, 2), ImageCache(tmp_path, 0)).images.shape == (2, 2, 2, 1)


def test_spaced_rows_are_spread_and_limited() -> None:
    assert spaced_rows(5, 100).tolist() == [0, 1, 2, 3, 4]
    rows = spaced_rows(10**6, 100)
    assert (rows[0], rows[-1], len(rows)) == (0, 10**6 - 1, 1000)
    assert len(spaced_rows(1000, 2**22)) == 8
    assert len(spaced_rows(10, 2**30)) == 1
