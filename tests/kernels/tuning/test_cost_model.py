"""The cost model of the tuner: its features and predictions."""

import math
from random import Random

import numpy as np
from tests.kernels.planted_surface import PROBLEM, START, surface, task

from hwnas.kernels.operator import Config
from hwnas.kernels.resources import Resources
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.cost_model import CostModel, features
from hwnas.kernels.tuning.trial import Footprint, TuningTrial


def trial(config: Config, time_us: float | None = None, warps: int = 0) -> TuningTrial:
    resources = (Resources(64, 0, 8192, warps),) if warps else ()
    times = Times.of([time_us]) if time_us else None
    return TuningTrial(
        config, "timed" if times else "untried", "", Footprint(200, 1e3), resources, times
    )


def test_cost_model_predictions_correlate_on_unseen_configs() -> None:
    times, random = surface(0), Random(0)
    configs = list(PROBLEM.solutions())
    random.shuffle(configs)
    model = CostModel()
    model.learn(task(), [trial(config, times(config)) for config in configs[:60]])
    predicted = np.log(model.predict_us(task(), [trial(config) for config in configs[60:]]))
    true = np.log([times(config) for config in configs[60:]])
    assert np.corrcoef(predicted, true)[0, 1] > 0.9


def test_cost_model_learns_only_from_timed_trials() -> None:
    model = CostModel()
    model.learn(task(), [trial(START), trial(START, 5.0), trial(START)])
    assert len(model) == 1
    assert math.isclose(model.predict_us(task(), [trial(START)])[0], 5.0)


def test_cost_model_takes_the_mean_for_unknown_features() -> None:
    model = CostModel()
    pairs = [(config, warps) for config in list(PROBLEM.solutions())[::40] for warps in (1, 8)]
    model.learn(task(), [trial(config, 80.0 / warps, warps) for config, warps in pairs])
    few, unknown, many = model.predict_us(
        task(), [trial(START, warps=1), trial(START), trial(START, warps=8)]
    )
    assert few > unknown > many


def test_features_have_names_and_finite_values() -> None:
    found = features(task(), trial(START, warps=4))
    assert found["num_warps"] == 1
    assert found["size rows"] == math.log2(197)
    assert found["occupancy"] == 0.5
    assert "occupancy" not in features(task(), trial(START))
    assert all(math.isfinite(value) for value in found.values())


def test_cost_model_predictions_stay_finite_far_from_its_trials() -> None:
    model = CostModel()
    model.learn(task(), [trial(START, 5.0), trial(START | {"num_warps": 8}, 5e6)])
    far = trial({name: 2**30 for name in START})
    assert 0 < model.predict_us(task(), [far])[0] < math.inf
