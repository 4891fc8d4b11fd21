"""The constraint solver, compared with a search through all combinations."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import InfeasibleError, KernelError
from hwnas.kernels.tuning.constraints import Constraint, Problem

NAMES = ("a", "b", "c", "d")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to four variables, and constraints on up to three of them, none too hard to keep."""
    names = NAMES[: draw(st.integers(1, 4))]
    values = st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True)
    constraints = []
    for _ in range(draw(st.integers(0, 4))):
        modulus, rest = draw(st.integers(1, 4)), draw(st.integers(0, 3))
        chosen = draw(st.permutations(names))[: draw(st.integers(1, 3))]
        condition = f"({' + '.join(chosen)}) % {modulus} != {rest}"
        holds = eval(f"lambda {', '.join(chosen)}: {condition}")
        constraints.append(Constraint(holds, condition))
    return Problem({name: tuple(draw(values)) for name in names}, tuple(constraints))


def by_trying(problem: Problem) -> list[dict[str, int]]:
    everything = (
        dict(zip(problem.variables, values, strict=True))
        for values in product(*problem.variables.values())
    )
    return [
        config
        for config in everything
        if all(c.holds(*(config[name] for name in c.names)) for c in problem.constraints)
    ]


@given(problems())
def test_problem_lists_each_solution_once_in_the_order_of_values(problem: Problem) -> None:
    assert list(problem.solutions()) == by_trying(problem)


@pytest.mark.slow
@given(problems())
def test_problem_broken_gives_a_reason_exactly_for_non_solutions(problem: Problem) -> None:
    solutions = by_trying(problem)
    for values in product(*problem.variables.values()):
        config = dict(zip(problem.variables, values, strict=True))
        assert (problem.broken(config) == []) == (config in solutions)


@given(problems(), st.integers(0, 9))
def test_problem_random_draws_only_solutions_and_repeats_by_seed(
    problem: Problem, seed: int
) -> None:
    random, solutions = Random(seed), by_trying(problem)
    if not solutions:
        with pytest.raises(InfeasibleError):
            problem.random(random)
        return
    drawn = [problem.random(random) for _ in range(3)]
    assert all(config in solutions for config in drawn)
    assert drawn[0] == problem.random(Random(seed))


def test_problem_random_draws_every_solution_eventually() -> None:
    problem = Problem(
        {"a": (1, 2, 3), "b": (1, 2, 3)}, (Constraint(lambda a, b: a != b, "they are equal"),)
    )
    random = Random(0)
    assert len({tuple(problem.random(random).items()) for _ in range(100)}) == 6


@given(problems())
def test_problem_neighbours_are_solutions_with_one_or_two_changes(problem: Problem) -> None:
    solutions = by_trying(problem)
    for config in solutions:
        near = problem.neighbours(config)
        assert all(neighbour in solutions for neighbour in near)
        changed = [[n for n in config if config[n] != other[n]] for other in near]
        assert all(1 <= len(names) <= 2 for names in changed)
        alone = [s for s in solutions if sum(s[n] != config[n] for n in config) == 1]
        assert all(other in near for other in alone)


def test_problem_broken_names_constraints_and_unknown_values() -> None:
    problem = Problem({"a": (1, 2), "b": (1,)}, (Constraint(lambda a, b: a != b, "equal"),))
    assert problem.broken({"a": 1, "b": 1}) == ["equal"]
    assert problem.broken({"a": 3}) == ["a is 3, not one of (1, 2)", "b is None, not one of (1,)"]


def test_problem_refuses_a_constraint_on_an_unknown_variable() -> None:
    with pytest.raises(KernelError, match="uses warps; the variables are a"):
        Problem({"a": (1,)}, (Constraint(lambda a, warps: a < warps, "few"),))
