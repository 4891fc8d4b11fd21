"""Short measurement of training speed, and its interpolation by size."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hwnas.planning import TrainingRates, TrainingSpeed, measure_speeds
from hwnas.planning.speed import probes
from hwnas.search_spaces import Architecture, resnet, union


@pytest.mark.slow
def test_measure_speeds_finds_larger_networks_slower_in_limited_time() -> None:
    space = resnet((32, 32, 3), 10, "compact")
    networks = dict.fromkeys([space.smallest(), space.largest()], "")
    begun = time.perf_counter()
    images = np.random.default_rng(0).integers(0, 255, (16, 40, 40, 3)).astype(np.uint8)
    found = measure_speeds(space, networks, images, seconds=2.0)
    assert time.perf_counter() - begun < 20
    assert [speed.network for speed in found if speed.precision == "fp32"] == list(networks)
    small, large = (speed.images_per_s for speed in found if speed.precision == "fp32")
    assert small > 3 * large
    emulated = [speed for speed in found if speed.precision == "bf16"]
    assert emulated[0].network == space.smallest()
    assert len(emulated) == (1 if emulated[0].images_per_s < small / 2 else 2)


@pytest.mark.slow
def test_probes_are_the_smallest_and_largest_network_of_each_family() -> None:
    space = union((32, 32, 3), 10, "cpu", resolution=(32,))
    found = probes(space)
    assert list(found.values()) == ["inverted"] * 2 + ["compact"] * 2
    sizes = [space.workload(network).macs for network in found]
    assert sizes[0] < sizes[1]
    assert sizes[2] < sizes[3]
    assert len(probes(resnet((32, 32, 3), 10, "compact"))) == 3


def test_training_rates_average_the_families_that_have_the_size() -> None:
    def speed(family: str, macs: int, images_per_s: float) -> TrainingSpeed:
        network = Architecture("space", (("macs", macs),))
        return TrainingSpeed(network, macs, "fp32", images_per_s, family)

    rates = TrainingRates.of(
        [speed("a", 1, 100), speed("a", 100, 10), speed("b", 10, 20), speed("b", 1000, 2)]
    )
    assert rates.sizes == pytest.approx((1, 1000))
    assert rates.seconds(1) == pytest.approx((0.01, 0.01))
    assert rates.seconds(10) == pytest.approx(((0.01 + 0.09 * 9 / 99 + 0.05) / 2, 0.05))
    assert rates.seconds(1000) == pytest.approx((0.5, 0.5))


def test_training_rates_never_make_a_larger_network_faster() -> None:
    networks = [Architecture("space", (("macs", macs),)) for macs in (1, 10)]
    speeds = [
        TrainingSpeed(n, m, "fp32", r)
        for n, m, r in zip(networks, (1, 10), (5.0, 6.0), strict=True)
    ]
    assert TrainingRates.of(speeds).seconds(10) == pytest.approx((0.2, 0.2))
