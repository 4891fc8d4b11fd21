from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import DataError
from hwnas.search import masks as module
from hwnas.search.masks import VOID, check_masks, class_counts, resize_masks


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.int16, bool])
def test_masks_of_any_integers_are_kept_as_bytes(kind: type) -> None:
    given = np.array([[[0, 1], [1, 0]]]).astype(kind)
    for masks in (check_masks(given, "y"), check_masks(given[..., None], "y")):
        assert masks.dtype == np.uint8
        assert masks.tolist() == [[[0, 1], [1, 0]]]


def test_large_masks_are_not_copied() -> None:
    given = np.zeros((4, 2, 2), np.uint8)
    assert check_masks(given, "y") is given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((3, 4, 4), np.float32), r"y is float32 with shape \(3, 4, 4\); masks are integ"),
        (np.zeros((3, 4, 4, 3), np.uint8), r"y has shape \(3, 4, 4, 3\); masks are \(N, H, W\)"),
        (np.zeros((0, 4, 4), np.uint8), r"y has shape \(0, 4, 4\)"),
        (np.full((3, 4, 4), -1), r"y goes from -1 to -1; the classes of masks are 0 to 254"),
        (np.full((3, 4, 4), 256), r"y goes from 256 to 256; .* 255 marks pixels without a class"),
    ],
)
def test_says_what_is_no_mask(given: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_masks(given, "y")


def test_pixels_are_counted_of_the_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = np.array([[[0, 1]], [[2, 2]], [[1, VOID]]], np.uint8)
    for block in (1, 2**20):
        monkeypatch.setattr(module, "_BLOCK_BYTES", block)
        counts = class_counts(masks, np.array([2, 0]))
        assert {i: n for i, n in enumerate(counts) if n} == {0: 1, 1: 2, VOID: 1}


@given(side=st.integers(1, 9), times=st.integers(1, 4), seed=st.integers(0, 99))
def test_enlarged_masks_repeat_pixels_and_come_back(side: int, times: int, seed: int) -> None:
    masks = np.random.default_rng(seed).integers(0, 256, (2, side, side), dtype=np.uint8)
    larger = resize_masks(masks, times * side)
    assert np.array_equal(larger, masks.repeat(times, 1).repeat(times, 2))
    assert np.array_equal(resize_masks(larger, side), masks)


def test_no_class_is_invented() -> None:
    masks = np.random.default_rng(0).choice(np.uint8([3, 200, VOID]), (3, 11, 7))
    assert set(np.unique(resize_masks(masks, 5))) <= {3, 200, VOID}
