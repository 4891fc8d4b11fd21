from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search.evolution.box import Box, RealGenes, polynomial_step, simulated_binary


def crossover_by_loops(a: float, b: float, u: float, index: float) -> tuple[float, float]:
    """Return Deb's crossover of one variable in [0, 1], without a swap of the children."""
    low, high = min(a, b), max(a, b)
    children = []
    for room in (low, 1 - high):
        beta = 1 + 2 * room / (high - low)
        alpha = 2 - beta ** -(index + 1)
        scaled = u * alpha
        spread = (scaled if scaled <= 1 else 1 / (2 - scaled)) ** (1 / (index + 1))
        children.append(spread)
    middle, half = (low + high) / 2, (high - low) / 2
    down, up = middle - children[0] * half, middle + children[1] * half
    return (down, up) if a < b else (up, down)


unit = st.floats(0, 1, width=32)


@given(unit, unit, st.integers(0, 2**20 - 1), st.sampled_from([2.0, 15.0]))
def test_crossover_equals_that_of_a_plain_loop(
    a: float, b: float, drawn: int, index: float
) -> None:
    u = drawn / 2**20
    if abs(a - b) < 1e-4:
        return
    first, second = torch.tensor([[[a] * 3], [[b] * 3]], dtype=torch.float64)
    quarters = [[0.25 * u, 0.5 + 0.25 * u, 0.75 + 0.25 * u]]
    uniform = torch.tensor(quarters, dtype=torch.float64)
    one, other = simulated_binary(first, second, uniform, index)
    down, up = crossover_by_loops(a, b, u, index)
    assert one[0].tolist() == pytest.approx([a, down, up], abs=1e-6)
    assert other[0].tolist() == pytest.approx([b, up, down], abs=1e-6)
    assert min(down, up) >= -1e-9
    assert max(down, up) <= 1 + 1e-9


def test_crossover_of_equal_parents_returns_them() -> None:
    parents = torch.tensor([[0.0, 0.3, 1.0]])
    one, other = simulated_binary(parents, parents, torch.tensor([[0.9, 0.6, 0.8]]), 15.0)
    assert torch.equal(one, parents)
    assert torch.equal(other, parents)


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True), st.sampled_from([1.0, 20.0]))
def test_mutation_equals_the_formula_of_the_paper(place: float, u: float, index: float) -> None:
    if u < 0.5:
        value = 2 * u + (1 - 2 * u) * (1 - place) ** (index + 1)
        expected = value ** (1 / (index + 1)) - 1
    else:
        value = 2 * (1 - u) + 2 * (u - 0.5) * place ** (index + 1)
        expected = 1 - value ** (1 / (index + 1))
    tensors = torch.tensor([[place], [u]], dtype=torch.float64)
    found = polynomial_step(*tensors, index).item()
    assert found == pytest.approx(expected, abs=1e-9)
    assert -1e-9 <= place + found <= 1 + 1e-9


def test_real_genes_children_stay_in_the_box_and_differ_from_parents() -> None:
    box = Box((-5.0, 0.0, 10.0), (-4.0, 1e-3, 1e4))
    low, high = torch.tensor(box.low), torch.tensor(box.high)
    genes = RealGenes(box, torch.Generator().manual_seed(0), crossover=0.0)
    parents = genes.complete(20_000, None)
    assert bool(((parents >= low) & (parents <= high)).all())
    spread = ((parents - low) / (high - low)).mean(0)
    assert spread.tolist() == pytest.approx([0.5] * 3, abs=0.02)
    half = len(parents) // 2
    children, lives = genes.children(parents[:half], parents[half:], len(parents), parents)
    assert bool(lives.all())
    assert bool(((children >= low) & (children <= high)).all())
    changed = ((children - parents).abs() > 1e-3 * (high - low)).double()
    assert bool((children != parents).any(1).all())
    assert 1.2 < changed.sum(1).mean() < 1.3  # one on average, at least one


@pytest.mark.parametrize("count", [7, 8, 4])
def test_real_genes_make_as_many_children_as_requested(count: int) -> None:
    genes = RealGenes(Box.cube(5), torch.Generator().manual_seed(0))
    parents = genes.complete(8, None)
    children, lives = genes.children(parents[:4], parents[4:], count, parents)
    assert children.shape == (count, 5)
    assert lives.shape == (count,)


def test_real_genes_start_the_population_with_given_individuals() -> None:
    genes = RealGenes(Box.cube(2, -1, 1), torch.Generator().manual_seed(0))
    known = torch.tensor([[0.5, -0.5], [1.0, -1.0]])
    population = genes.complete(10, known)
    assert population.shape == (10, 2)
    assert torch.equal(population[:2], known)


@pytest.mark.parametrize(
    ("known", "message"),
    [([[0.5]], r"shape \(1, 1\); expected \(N, 2\)"), ([[0.5, 2.0]], "outside of the box")],
)
def test_real_genes_refuse_a_wrong_first_population(known: Any, message: str) -> None:
    genes = RealGenes(Box.cube(2), torch.Generator())
    with pytest.raises(ConfigError, match=message):
        genes.complete(10, torch.tensor(known))


@pytest.mark.parametrize(
    ("low", "high"),
    [((), ()), ((0.0,), (1.0, 2.0)), ((1.0,), (1.0,)), ((0.0,), (math.inf,)), ((np.nan,), (1.0,))],
)
def test_box_refuses_invalid_bounds(low: tuple[float, ...], high: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="box"):
        Box(low, high)
