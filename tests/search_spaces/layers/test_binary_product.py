"""Products of signs by XNOR and counts of bits are those of a multiplication."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search_spaces.layers import binary_product
from hwnas.search_spaces.layers.binary_product import PackedSigns, xnor_product


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_product_is_exact_with_padding_too(rows: int, columns: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    left = rng.integers(-1, 2, (rows, length))
    right = rng.choice([-1, 1], (columns, length))
    found = xnor_product(PackedSigns.of(left), PackedSigns.of(right))
    np.testing.assert_array_equal(found, left @ right.T)


def test_large_products_are_made_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_product, "_WORDS_AT_ONCE", 8)
    rng = np.random.default_rng(0)
    left, right = rng.choice([-1, 1], (13, 100)), rng.choice([-1, 1], (3, 100))
    found = xnor_product(PackedSigns.of(left), PackedSigns.of(right))
    np.testing.assert_array_equal(found, left @ right.T)


@pytest.mark.parametrize("signs", [[[2, 1]], [1, -1], [[0.5]]])
def test_other_numbers_are_refused(signs: list[object]) -> None:
    with pytest.raises(ValueError, match="matrix of -1, 0 and 1"):
        PackedSigns.of(signs)


def test_rows_of_other_lengths_are_refused() -> None:
    left, right = PackedSigns.of(np.ones((1, 64))), PackedSigns.of(np.ones((1, 65)))
    with pytest.raises(ValueError, match="1 and 2 words"):
        xnor_product(left, right)
