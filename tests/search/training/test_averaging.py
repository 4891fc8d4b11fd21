from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.search.training.averaging import MovingAverage


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0.01, 0.999))
def test_moving_average_equals_the_recursion_by_definition(
    values: list[float], decay: float
) -> None:
    network = nn.Linear(1, 1)
    with torch.no_grad():
        network.weight.fill_(3.0)
    average = MovingAverage(network, decay)
    expected = 3.0
    for n, value in enumerate(values):
        with torch.no_grad():
            network.weight.fill_(value)
        average.update(n)
        now = min(decay, (1 + n) / (10 + n))
        expected = now * expected + (1 - now) * value
    assert abs(average.tensors["weight"].item() - expected) < 1e-4
    average.give()
    assert abs(network.weight.item() - expected) < 1e-4


def test_moving_average_includes_running_statistics_but_no_counters() -> None:
    network = nn.BatchNorm1d(2)
    average = MovingAverage(network, 0.5)
    for n in range(20):
        network(torch.full((4, 2), 5.0) + torch.arange(4.0)[:, None])
        average.update(n)
    average.give()
    assert 0 < network.running_mean[0] < 6.5
    assert network.num_batches_tracked == 20
