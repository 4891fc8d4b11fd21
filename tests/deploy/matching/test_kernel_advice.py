"""Advice about channel counts, for layers whose waste is calculated by hand."""

import itertools

from torch import nn

from hwnas.deploy.matching.kernel_advice import advice
from hwnas.search_spaces import Workload
from hwnas.search_spaces.cost_model.workload import trace


def workload(*channels: int) -> Workload:
    layers = [nn.Conv2d(a, b, 1) for a, b in itertools.pairwise(channels)]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 16)
    return trace(nn.Sequential(*layers, *head), (channels[0], 4, 4))


def test_advice_names_wasteful_channel_counts_and_better_ones() -> None:
    loads, products = advice(workload(16, 20, 16), 2)
    assert loads == (
        "channel counts of 1 feature maps do not allow loads of 16 bytes; other counts would "
        "(20: 16 or 32)"
    )
    assert products.startswith("37% of the multiplications in pointwise layers are with zeros")


def test_advice_does_not_mention_full_loads_in_fp32() -> None:
    assert len(advice(workload(16, 20, 16), 4)) == 1


def test_advice_is_empty_without_waste() -> None:
    assert advice(workload(16, 48, 32), 2) == []
