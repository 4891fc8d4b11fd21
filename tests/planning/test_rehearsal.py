"""Rehearsal of the trainings of a plan, on real images."""

from __future__ import annotations

import numpy as np
import pytest

from hwnas.planning import TrainingRates, slowdown
from hwnas.planning.rehearsal import _candidates, _mean_step, _seconds_per_image
from hwnas.search import DataConfig, ImageData, TrainConfig, classification, load_data
from hwnas.search.training.trainer import TrainingPoint
from hwnas.search_spaces import resnet

SPACE = resnet((8, 8, 1), 10, "compact", resolution=(48,))
TRAIN = TrainConfig(epochs=100, batch_size=64)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    cache = tmp_path_factory.mktemp("cache")
    return load_data(DataConfig("digits"), cache, 0, cache)


def test_rehearsed_networks_are_spread_below_the_largest_of_the_plan() -> None:
    least = SPACE.workload(SPACE.smallest()).macs
    macs = [SPACE.workload(network).macs for network in _candidates(SPACE, 8 * least)]
    assert len(set(macs)) == 8
    assert least <= min(macs) < max(macs) / 3
    assert max(macs) <= 8 * least


@pytest.mark.slow
def test_slowdown_is_relative_to_the_probe(
    digits: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.planning.rehearsal._SECONDS", 0.3)
    rate = np.array([1e3, 1e12]), np.array([1.0, 1.0])
    given = SPACE, classification(digits), digits.train, TRAIN
    most = 2.0 * SPACE.workload(SPACE.smallest()).macs
    assert slowdown(*given, TrainingRates((rate,)).scaled(1e-3), most, 0) > 0
    monkeypatch.setattr("hwnas.planning.rehearsal._seconds_per_image", lambda *_: 3.0)
    assert slowdown(*given, TrainingRates((rate,)).scaled(2.0), most, 0) == pytest.approx(1.5)


@pytest.mark.slow
def test_rehearsal_counts_the_time_that_low_resolution_saves(digits: ImageData) -> None:
    shared = SPACE, classification(digits), digits.train
    low = TrainConfig(epochs=100, first_resolution=0.3, full_resolution_from=0.95)
    network = SPACE.largest()
    whole, saved = (_seconds_per_image((*shared, train), network, 3.0) for train in (TRAIN, low))
    assert saved < 0.8 * whole


def test_mean_step_counts_parts_of_the_progress_equally() -> None:
    steps = [0.1] * 12 + [0.3] * 3 + [0.4] * 3 + [0.4] * 3
    ends = np.cumsum([9.0, 9.0, *steps])  # the first two steps are slow, and left out
    shares = [0.0, 0.0, *np.repeat([0.1, 0.3, 0.6, 0.9], [12, 3, 3, 3])]
    points = [
        TrainingPoint(step, 0.0, float(end), 0.0, 0.0, 0.0, share)
        for step, (end, share) in enumerate(zip(ends, shares, strict=True))
    ]
    assert _mean_step(points) == pytest.approx((0.1 + 0.3 + 0.4 + 0.4) / 4)
