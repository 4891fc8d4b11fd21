"""How much work and bandwidth a number of channels wastes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.kernels.tuning.friendly import friendly_channels, idle_products, load_bytes

channels = st.integers(1, 4096)


@pytest.mark.parametrize(
    ("count", "itemsize", "together"), [(24, 2, 16), (20, 2, 8), (18, 2, 4), (17, 2, 2), (18, 4, 8)]
)
def test_load_bytes_is_the_largest_aligned_load_of_every_pixel(
    count: int, itemsize: int, together: int
) -> None:
    assert load_bytes(count, itemsize) == together


def test_idle_products_is_the_wasted_share_of_multiplications() -> None:
    assert idle_products(16, 48) == 0
    assert idle_products(24, 16) == 0.25  # 24 of 32
    assert idle_products(8, 8) == 0.75


@given(channels, st.sampled_from([1, 2, 4]))
def test_friendly_channels_enclose_the_count_and_waste_nothing(count: int, itemsize: int) -> None:
    low, high = friendly_channels(count)
    assert low - 16 < count <= high
    for friendly in (low, high):
        assert load_bytes(friendly, itemsize) == 16
        assert idle_products(friendly, friendly) == 0
