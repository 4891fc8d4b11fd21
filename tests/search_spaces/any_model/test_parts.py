"""Costs of an elastic space's networks from a few traces.

The conformance suite compares every step.
"""

import random
import time

import numpy as np
import pytest
import torch
from own_models import MODELS, seeded
from torch import Tensor, nn

from hwnas.search_spaces import ElasticSpace, elastic

EXAMPLE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def codes_of(space: ElasticSpace, number: int) -> np.ndarray:
    rng = random.Random(0)
    return np.array([space.encode(space.sample(rng)) for _ in range(number)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "dense", "unet", "vit", "vit-bound"])
def test_counted_params_macs_and_depth_equal_those_of_the_networks(name: str) -> None:
    space = elastic(seeded(MODELS[name]), EXAMPLE)
    codes = codes_of(space, 5)
    counted = space.counted(codes)
    for i, code in enumerate(codes):
        network = space.build(space.decode(code))
        assert counted["params"][i] == sum(p.numel() for p in network.parameters())
        assert counted["macs"][i] == space.workload(space.decode(code)).macs
    depth = space.depth(codes)
    assert depth is not None
    assert depth.tolist() == [
        sum(int(v) for k, v in space.decode(code).values if k.endswith("depth")) for code in codes
    ]


@pytest.mark.slow
def test_counted_takes_under_a_second_for_thousands_of_networks() -> None:
    space = elastic(seeded(MODELS["vit"]), EXAMPLE)
    codes = np.tile(codes_of(space, 50), (100, 1))
    space.counted(codes[:1])
    start = time.process_time()
    space.counted(codes)
    assert time.process_time() - start < 1.0


class Uneven(nn.Module):
    """Model whose forward pass depends on its width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 16, 1)
        self.outputs = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.second(x if x.shape[1] > 20 else x.relu())
        outputs: Tensor = self.outputs(x.mean((2, 3)))
        return outputs


def test_workload_traces_networks_whose_costs_are_no_polynomial() -> None:
    space = elastic(seeded(Uneven), EXAMPLE)
    codes = codes_of(space, 2)
    assert space.parts(codes) is None
    assert (space.counted(codes), space.depth(codes)) == ({}, None)
    assert space.workload(space.decode(codes[0])).macs > 0
