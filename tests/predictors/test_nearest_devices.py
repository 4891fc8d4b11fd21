from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.predictors.models.nearest_devices import NearestDevices

LINE = np.array([[0.0], [1.0], [2.0], [10.0]])


def test_nearest_devices_leave_out_the_others() -> None:
    weights = NearestDevices(LINE, 2).weights(np.array([1.25]))
    assert weights[0] == weights[3] == 0
    assert weights[1] == pytest.approx(9 * weights[2])  # three times as near


def test_nearest_devices_give_an_equal_device_all_weight() -> None:
    np.testing.assert_allclose(NearestDevices(LINE).weights(LINE[2]), [0, 0, 1, 0], atol=1e-9)


def test_nearest_devices_count_devices_with_equal_descriptions_as_one() -> None:
    twice = np.vstack([LINE, LINE[:1]])
    weights = NearestDevices(twice, 2).weights(np.array([0.5]))
    np.testing.assert_allclose(weights, [0.25, 0.5, 0, 0, 0.25])


@given(
    st.lists(st.tuples(*[st.floats(-9, 9)] * 2), min_size=1, max_size=8),
    st.tuples(*[st.floats(-99, 99)] * 2),
    st.integers(1, 5),
)
def test_nearest_devices_have_weights_of_a_mean(
    known: list[tuple[float, float]], new: tuple[float, float], count: int
) -> None:
    weights = NearestDevices(np.array(known), count).weights(np.array(new))
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)


def test_nearest_devices_refuse_an_empty_list() -> None:
    with pytest.raises(ConfigError, match="0 descriptions and the 3 nearest"):
        NearestDevices(np.zeros((0, 2)))
