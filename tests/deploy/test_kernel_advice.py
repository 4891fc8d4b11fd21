"""Advice about channels, for a layer whose waste is known by hand."""

import itertools

from torch import nn

from hwnas.deploy.kernel_advice import advice
from hwnas.search_spaces import Workload
from hwnas.search_spaces.workload import trace


def workload(*channels: int) -> Workload:
    layers = [nn.Conv2d(a, b, 1) for a, b in itertools.pairwise(channels)]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 16)
    return trace(nn.Sequential(*layers, *head), (channels[0], 4, 4))


def test_channels_that_waste_are_named_with_some_that_do_not() -> None:
    loads, products = advice(workload(16, 20, 16), 2)
    assert loads == (
        "channel counts of 1 feature maps do not allow loads of 16 bytes; other counts would "
        "(20: 16 or 32)"
    )
    assert products.startswith("37% of the multiplications in pointwise layers are with zeros")


def test_in_single_precision_fewer_channels_fill_a_load() -> None:
    assert len(advice(workload(16, 20, 16), 4)) == 1


def test_there_is_none_where_nothing_is_wasted() -> None:
    assert advice(workload(16, 48, 32), 2) == []
