from __future__ import annotations

import numpy as np
import pytest

from hwnas.errors import DataError
from hwnas.search.data import masks as module
from hwnas.search.data.masks import VOID, check_masks, class_counts


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.int16, bool])
def test_check_masks_converts_integers_to_bytes(kind: type) -> None:
    given = np.array([[[0, 1], [1, 0]]]).astype(kind)
    for masks in (check_masks(given, "y"), check_masks(given[..., None], "y")):
        assert masks.dtype == np.uint8
        assert masks.tolist() == [[[0, 1], [1, 0]]]


def test_check_masks_does_not_copy_bytes() -> None:
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
def test_check_masks_refuses_other_types_shapes_and_values(given: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_masks(given, "y")


def test_class_counts_counts_pixels_of_the_given_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = np.array([[[0, 1]], [[2, 2]], [[1, VOID]]], np.uint8)
    for block in (1, 2**20):
        monkeypatch.setattr(module, "_BLOCK_BYTES", block)
        counts = class_counts(masks, np.array([2, 0]))
        assert {i: n for i, n in enumerate(counts) if n} == {0: 1, 1: 2, VOID: 1}
