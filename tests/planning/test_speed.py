"""Training speed, measured in a moment."""

from __future__ import annotations

import time

import numpy as np

from hwnas.planning import measure_speeds
from hwnas.search_spaces import resnet


def test_a_larger_network_is_slower_and_the_time_is_kept() -> None:
    space = resnet((32, 32, 3), 10, "compact")
    networks = [space.smallest(), space.largest()]
    begun = time.perf_counter()
    images = np.random.default_rng(0).integers(0, 255, (16, 40, 40, 3)).astype(np.uint8)
    found = measure_speeds(space, networks, images, seconds=2.0)
    assert time.perf_counter() - begun < 20
    assert [(speed.network, speed.precision) for speed in found] == [
        (network, precision) for network in networks for precision in ("fp32", "bf16")
    ]
    small, _, large, _ = (speed.images_per_s for speed in found)
    assert small > 3 * large
