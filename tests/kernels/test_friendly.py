"""What numbers of channels waste, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.kernels.friendly import friendly_channels, idle_products, load_bytes

channels = st.integers(1, 4096)


@pytest.mark.parametrize(
    ("count", "itemsize", "together"), [(24, 2, 16), (20, 2, 8), (18, 2, 4), (17, 2, 2), (18, 4, 8)]
)
def test_a_thread_loads_what_every_pixel_begins_at(
    count: int, itemsize: int, together: int
) -> None:
    assert load_bytes(count, itemsize) == together


def test_what_is_multiplied_beyond_a_layer() -> None:
    assert idle_products(16, 48) == 0
    assert idle_products(24, 16) == 0.25  # 24 of 32
    assert idle_products(8, 8) == 0.75


@given(channels, st.sampled_from([1, 2, 4]))
def test_friendly_channels_waste_nothing_and_enclose_what_was_asked(
    count: int, itemsize: int
) -> None:
    low, high = friendly_channels(count)
    assert low - 16 < count <= high
    for friendly in (low, high):
        assert load_bytes(friendly, itemsize) == 16
        assert idle_products(friendly, friendly) == 0
