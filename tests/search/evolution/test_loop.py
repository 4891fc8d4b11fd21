"""The evolution loop: the same tests for every algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hwnas.errors import ConfigError, DataError, DeviceError
from hwnas.search import Box, EvolutionResult, evolve
from hwnas.search.evolution import ALGORITHMS
from hwnas.search.evolution.dtlz import dtlz2
from hwnas.search.objectives.front import non_dominated
from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.tabular import CategoricalSpace, NasBench201Space

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
LARGE = CategoricalSpace((0,) * 20, (5,) * 20)


def leaning(codes: torch.Tensor) -> Any:
    """Return two conflicting losses in NumPy: the sum of early codes, and of inverted late ones."""
    array = codes.numpy()
    half = array.shape[1] // 2
    return np.stack([array[:, :half].sum(1), (4 - array[:, half:]).sum(1) - array[:, 0]], axis=1)


def check(found: EvolutionResult) -> None:
    """Check that the front is that of the population, without repeats."""
    feasible = found.violations <= 0
    front = found.losses[feasible][non_dominated(found.losses[feasible])]
    assert set(map(tuple, found.front_losses)) == set(map(tuple, front))
    assert len(np.unique(found.front, axis=0)) == len(found.front) == len(found.front_losses)
    assert len(found.population) == len(found.losses) == len(found.violations)


@pytest.mark.slow
@every_algorithm
def test_evolve_covers_the_front_of_dtlz2(algorithm: str) -> None:
    found = evolve(Box.cube(7), dtlz2(3), 120, 60, algorithm)
    check(found)
    assert found.population.dtype == np.float32
    assert found.evaluations == 120 * 60
    radius = np.linalg.norm(found.front_losses, axis=1)
    assert np.quantile(radius, 0.9) < 1.08
    assert radius.min() >= 1 - 1e-6
    for objective in range(3):
        assert found.front_losses[:, objective].max() > 0.9
        assert found.front_losses[:, objective].min() < 0.1


@pytest.mark.slow
@every_algorithm
def test_evolve_finds_the_best_networks_of_a_large_space(algorithm: str) -> None:
    found = evolve(LARGE, leaning, 200, 40, algorithm)
    check(found)
    assert found.population.dtype == np.int64
    best = {(loss, -loss) for loss in range(5)}  # both objectives use one position only
    assert {tuple(row) for row in found.front_losses} <= best
    assert len(found.front) >= 3


@every_algorithm
def test_evolve_repeats_its_result_with_the_same_seed(algorithm: str) -> None:
    first, again, other = (
        evolve(LARGE, leaning, 50, 5, algorithm, seed=seed) for seed in (3, 3, 4)
    )
    assert (first.population == again.population).all()
    assert (first.losses == again.losses).all()
    assert (first.population != other.population).any()


@every_algorithm
def test_evolve_removes_individuals_that_violate_a_constraint(algorithm: str) -> None:
    def score(codes: torch.Tensor) -> Any:
        return codes[:, :2].double() @ torch.tensor([[1.0, -1], [0, 1]]).double(), codes[:, 2] - 1.0

    found = evolve(LARGE, score, 60, 15, algorithm)
    check(found)
    assert (found.violations == 0).all()
    assert (found.front[:, 2] <= 1).all()


@every_algorithm
@pytest.mark.parametrize("population", [4, 5, 31])
def test_evolve_keeps_the_population_size(algorithm: str, population: int) -> None:
    sizes = []
    evolve(
        LARGE, leaning, population, 4, algorithm, on_generation=lambda n, c, s: sizes.append(len(c))
    )
    assert sizes == [population] * 4


def test_evolve_returns_an_empty_front_if_none_is_feasible() -> None:
    found = evolve(LARGE, lambda codes: (leaning(codes), 1 + codes[:, 3]), 40, 10)
    assert len(found.front) == len(found.front_losses) == 0
    assert (found.violations == 1).all()  # the smallest possible violation


@every_algorithm
def test_evolve_scores_canonical_networks_once_per_generation(
    algorithm: str, small_space: MobileNetSpace
) -> None:
    seen = []

    def score(codes: torch.Tensor) -> Any:
        seen.append(codes.numpy().copy())
        return leaning(codes)

    found = evolve(small_space, score, 20, 6, algorithm)
    check(found)
    assert sum(map(len, seen)) == found.evaluations
    for codes in seen:
        assert (small_space.canonical(codes) == codes).all()
        assert len(np.unique(codes, axis=0)) == len(codes)
    assert [small_space.decode(code) for code in found.front]


def test_evolve_scores_a_small_space_completely(small_space: MobileNetSpace) -> None:
    calls: list[int] = []
    found = evolve(
        small_space,
        leaning,
        100_000,
        on_generation=lambda number, codes, losses: calls.append(number),
    )
    assert found.evaluations == len(found.population) == small_space.size()
    assert len({small_space.decode(code) for code in found.population}) == small_space.size()
    assert calls == [1]
    check(found)


def test_evolve_accepts_a_population_of_nearly_the_whole_space() -> None:
    space = NasBench201Space()
    found = evolve(space, leaning, 15_000, 3)
    assert len(np.unique(found.population, axis=0)) == 15_000
    assert 15_000 < found.evaluations <= 3 * 15_000


def test_on_generation_receives_each_generation() -> None:
    told: list[tuple[int, int, float]] = []

    def note(number: int, codes: torch.Tensor, losses: torch.Tensor) -> None:
        told.append((number, len(codes), float(losses.sum(1).min())))

    found = evolve(LARGE, leaning, 50, 6, on_generation=note)
    assert [number for number, _, _ in told] == [1, 2, 3, 4, 5, 6]
    assert {count for _, count, _ in told} == {50}
    assert told[-1][2] <= told[0][2]
    assert told[-1][2] == found.losses.sum(1).min()


def test_evolve_keeps_good_initial_networks() -> None:
    best = np.full((1, 20), 4)
    best[:, 1:10] = 0  # no network has a smaller second objective
    found = evolve(LARGE, leaning, 30, 2, initial=best)
    assert (found.front == best).all(1).any()
    scored: list[Any] = []
    evolve(LARGE, lambda codes: scored.append(codes) or leaning(codes), 30, 1, initial=best)
    assert (scored[0][0].numpy() == best).all()


def test_evolve_applies_a_given_canonical_form() -> None:
    def first_is_free(codes: Any) -> Any:
        codes = codes.copy()
        codes[:, 0] = 0
        return codes

    found = evolve(LARGE, leaning, 40, 5, canonical=first_is_free)
    assert not found.population[:, 0].any()


def test_evolve_keeps_the_number_of_threads() -> None:
    before, inside = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        evolve(LARGE, lambda c: inside.append(torch.get_num_threads()) or leaning(c), 20, 3)
        assert torch.get_num_threads() == 2
        assert set(inside) == {2}  # the score function may use them
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": "nsga4"}, "unknown algorithm 'nsga4'; did you mean 'nsga"),
        ({"population": 3}, "population is 3; expected at least 4"),
        ({"seed": -1}, "seed is -1; expected 0 to"),
        ({"generations": 0}, "generations is 0; expected at least 1"),
        ({"initial": np.zeros((11, 20))}, "initial has 11 individuals; expected at most"),
        ({"initial": np.zeros((1, 3))}, r"initial has shape \(1, 3\); expected \(N, 20\)"),
    ],
)
def test_evolve_refuses_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evolve(LARGE, leaning, **{"population": 10, "generations": 2, **arguments})


def test_evolve_refuses_losses_that_are_not_finite() -> None:
    with pytest.raises(DataError, match="not finite for 10 of 10"):
        evolve(LARGE, lambda codes: leaning(codes) * np.nan, 10)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu9", "unknown device 'tpu9'; expected cpu or cuda"),
        ("meta", "unknown device 'meta'"),
        ("cuda:99", r"cuda:99 cannot be used: torch finds \d+ CUDA devices here"),
    ],
)
def test_evolve_refuses_an_unknown_device(device: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        evolve(LARGE, leaning, 10, device=device)


@pytest.mark.gpu
@every_algorithm
def test_evolve_reaches_the_front_of_dtlz2_on_a_gpu(algorithm: str) -> None:
    found = evolve(Box.cube(7), dtlz2(3), 2_000, 40, algorithm, device="cuda")
    check(found)
    assert np.quantile(np.linalg.norm(found.front_losses, axis=1), 0.9) < 1.08
    again = evolve(Box.cube(7), dtlz2(3), 2_000, 40, algorithm, device="cuda")
    assert (again.population == found.population).all()
