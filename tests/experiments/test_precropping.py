"""The precropping experiment: sparse networks with the density of cropped ones."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.precropping.sparse import densities, density, make_sparse
from experiments.record import read_rows
from hwnas.search_spaces import channels


@pytest.mark.slow
def test_sparse_network_has_as_many_weights_per_layer_as_the_cropped() -> None:
    space = channels((8, 8, 3), 10)
    cropped = space.build(space.sample(random.Random(0)))
    whole = space.build(space.largest())
    make_sparse(whole, densities(whole, cropped), 0)
    smaller = dict(cropped.named_parameters())
    for name, weights in whole.named_parameters():
        assert int(weights.count_nonzero()) == smaller[name].numel() or weights.dim() < 2
    assert 0 < density(whole) < 1


def test_training_of_a_sparse_network_keeps_its_zeros() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
    masks = make_sparse(network, {"0.weight": 0.25, "2.weight": 0.5}, 0)
    before = {name: weights.detach().clone() for name, weights in network.named_parameters()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, weight_decay=0.1, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.randn(16, 12)).square().sum().backward()
        optimizer.step()
    after = dict(network.named_parameters())
    for name, mask in masks.items():
        assert after[name][mask == 0].eq(0).all()
        assert after[name][mask == 1].ne(before[name][mask == 1]).any()
    assert density(network) == pytest.approx((24 + 8) / (96 + 16))


def test_make_sparse_mask_depends_only_on_the_seed() -> None:
    found = [make_sparse(nn.Linear(9, 9), {"weight": 0.5}, seed)["weight"] for seed in (1, 1, 2)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.exhaustive
def test_precropping_experiment_trains_and_measures_once(
    experiment: Callable[..., Any], tmp_path: Path
) -> None:
    options = ["--seeds", "0", "--assignments", "1", "--pool", "6", "--out", str(tmp_path / "out")]
    for setting in ("data.source=digits", "train.epochs=1", "train.workers=0", "search.workers=0"):
        options += ["--set", setting]
    first, second = (experiment("precropping.run", "--work", tmp_path, *options) for _ in range(2))
    assert first.status == second.status == 0, first.err
    assert "seed 0: trained whole dense" in first.out
    assert "seed 0: " not in second.out
    found = {(row.metric, row.subject) for row in read_rows(tmp_path / "out" / "results.jsonl")}
    assert ("times as fast", "mean cropped-over-sparse") in found
    assert ("test_accuracy", "whole dense") in found
