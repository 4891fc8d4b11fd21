"""Training speed, measured in a moment."""

from __future__ import annotations

import time

from hwnas.planning import measure_speeds
from hwnas.search_spaces import resnet


def test_a_larger_network_is_slower_and_the_time_is_kept() -> None:
    space = resnet((32, 32, 3), 10, "compact")
    networks = [space.smallest(), space.largest()]
    begun = time.perf_counter()
    found = measure_speeds(space, networks, 16, seconds=2.0)
    assert time.perf_counter() - begun < 20
    assert [(speed.network, speed.precision) for speed in found] == [
        (network, precision) for network in networks for precision in ("fp32", "bf16")
    ]
    small, _, large, _ = (speed.images_per_s for speed in found)
    assert small > 3 * large
