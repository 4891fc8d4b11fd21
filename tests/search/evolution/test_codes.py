from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search.evolution.codes import CodeGenes

options = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def gated(codes: Any) -> Any:
    """Return codes whose last position is 0, without effect, unless the first is 1."""
    codes = codes.copy()
    codes[:, -1] *= codes[:, 0] == 1
    return codes


def distinct(codes: torch.Tensor) -> int:
    return len(np.unique(codes.numpy(), axis=0))


@given(options, st.integers(4, 60), st.integers(0, 2**31))
def test_code_genes_stay_in_the_space_without_repeats(
    numbers: list[int], population: int, seed: int
) -> None:
    size = int(np.prod(numbers))
    genes = CodeGenes(numbers, torch.Generator().manual_seed(seed))
    parents = genes.complete(population, None)
    assert distinct(parents) == len(parents)
    assert len(parents) == min(size, population)
    if size <= population:
        return
    half = (len(parents) + 1) // 2
    children, lives = genes.children(parents[:half], parents[-half:], len(parents), parents)
    assert children.shape == parents.shape
    assert bool(((children >= 0) & (children < torch.tensor(numbers))).all())
    assert distinct(torch.cat([parents, children[lives]])) == len(parents) + int(lives.sum())


def test_code_genes_children_in_a_large_space_come_from_their_parents() -> None:
    genes = CodeGenes([4] * 30, torch.Generator().manual_seed(0))
    parents = genes.complete(2_000, None)
    first, second = parents[:1000], parents[1000:]
    children, lives = genes.children(first, second, 2000, parents)
    assert bool(lives.all())
    foreign = (children[:1000] != first) & (children[:1000] != second)
    assert 0.7 < foreign.double().sum(1).mean() < 0.85  # one mutation; 1/4 match the other parent
    from_first = (children[:1000] == first)[first != second].double().mean()
    assert 0.5 < from_first < 0.6  # half, and the tenth without crossover


def test_mutation_draws_every_other_option_equally_often() -> None:
    genes = CodeGenes([4, 1], torch.Generator().manual_seed(0), size=10**9)
    young = genes._mutated(torch.tensor([[2, 0]]).repeat(30_000, 1), forced=True)
    counts = torch.bincount(young[:, 0], minlength=4)
    assert counts.tolist() == pytest.approx([10_000, 10_000, 0, 10_000], rel=0.05)
    assert not young[:, 1].any()


def test_code_genes_treat_equivalent_codes_as_one_network() -> None:
    genes = CodeGenes([3, 2, 4], torch.Generator().manual_seed(0), gated, size=2 * 2 + 2 * 4)
    everything = genes.everything(100)
    assert everything is not None
    assert distinct(everything) == len(everything) == 12
    assert genes.everything(11) is None
    population = genes.complete(8, torch.tensor([[0, 1, 3], [1, 1, 3]]))
    assert population[:2].tolist() == [[0, 1, 0], [1, 1, 3]]
    assert distinct(population) == len(population) == 8
    children, lives = genes.children(population[:4], population[4:], 8, population)
    assert (children.numpy() == gated(children.numpy())).all()
    assert distinct(torch.cat([population, children[lives]])) == 8 + int(lives.sum()) <= 12


def test_code_genes_find_repeats_in_spaces_beyond_64_bits() -> None:
    genes = CodeGenes([10] * 40, torch.Generator().manual_seed(0))
    parents = genes.complete(50_000, None)
    assert len(parents) == distinct(parents) == 50_000
    twice = torch.cat([parents[:1], parents])
    assert len(genes.complete(50_000, twice[:2])) == 50_000


@pytest.mark.parametrize(
    ("known", "message"),
    [([[1, 2]], r"shape \(1, 2\); expected \(N, 3\)"), ([[0, 0, 4]], "outside of the space")],
)
def test_code_genes_refuse_a_wrong_first_population(known: Any, message: str) -> None:
    genes = CodeGenes([3, 3, 4], torch.Generator())
    with pytest.raises(ConfigError, match=message):
        genes.complete(10, torch.tensor(known))
