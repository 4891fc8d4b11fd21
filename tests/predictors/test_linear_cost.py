from __future__ import annotations

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.predictors.devices.shipped import shipped_profiles
from hwnas.predictors.features.physical import FEATURES, quantities
from hwnas.predictors.models.linear_cost import LinearCost
from hwnas.search_spaces import MobileNetSpace, OperatorCountTable, mobilenet

PROFILE = shipped_profiles()["cpu-onnxruntime-fp32-b1-t1"]


def test_linear_cost_fits_measured_latencies_and_predicts_others() -> None:
    rows = np.arange(len(PROFILE))
    seen, asked = rows[::2], rows[1::2]
    model = LinearCost.fit([PROFILE.steps.rows(seen)], [PROFILE.costs[seen]])
    errors = np.exp(model.logs(PROFILE.steps.rows(asked))) / PROFILE.costs[asked] - 1
    assert float(np.median(np.abs(errors))) < 0.1


def test_linear_cost_recovers_a_sum_of_quantities() -> None:
    amount = quantities(PROFILE.steps)[:, FEATURES.index("pointwise_macs")]
    model = LinearCost.fit([PROFILE.steps], [0.5 + 1e-6 * amount])
    np.testing.assert_allclose(np.exp(model.logs(PROFILE.steps)), 0.5 + 1e-6 * amount, rtol=1e-6)


def test_linear_cost_gives_larger_networks_no_smaller_cost() -> None:
    space: MobileNetSpace = mobilenet((224, 224, 3), 1000)
    networks = [space.workload(each) for each in (space.smallest(), space.largest())]
    small, large = LinearCost.fit([PROFILE.steps], [PROFILE.costs]).logs(
        OperatorCountTable.of_workloads(networks)
    )
    assert large > small


@pytest.mark.parametrize("latencies_ms", [np.ones(3), np.zeros(len(PROFILE))])
def test_linear_cost_refuses_other_latencies_than_one_of_each(latencies_ms: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="expected one positive one of each"):
        LinearCost.fit([PROFILE.steps], [latencies_ms])


def test_linear_cost_refuses_negative_weights() -> None:
    with pytest.raises(ConfigError, match="none of them negative"):
        LinearCost((-1.0, *[0.0] * len(FEATURES)))
