"""The solver against trying everything."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import InfeasibleError, KernelError
from hwnas.kernels.constraints import Constraint, Problem

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
def test_it_lists_each_solution_once_in_the_order_of_the_values(problem: Problem) -> None:
    assert list(problem.solutions()) == by_trying(problem)


@given(problems())
def test_what_is_no_solution_has_a_reason(problem: Problem) -> None:
    solutions = by_trying(problem)
    for values in product(*problem.variables.values()):
        config = dict(zip(problem.variables, values, strict=True))
        assert (problem.broken(config) == []) == (config in solutions)


@given(problems(), st.integers(0, 9))
def test_any_solution_can_be_drawn_and_nothing_else(problem: Problem, seed: int) -> None:
    random, solutions = Random(seed), by_trying(problem)
    if not solutions:
        with pytest.raises(InfeasibleError):
            problem.random(random)
        return
    drawn = [problem.random(random) for _ in range(3)]
    assert all(config in solutions for config in drawn)
    assert drawn[0] == problem.random(Random(seed))


def test_in_time_every_solution_is_drawn() -> None:
    problem = Problem(
        {"a": (1, 2, 3), "b": (1, 2, 3)}, (Constraint(lambda a, b: a != b, "they are equal"),)
    )
    random = Random(0)
    assert len({tuple(problem.random(random).items()) for _ in range(100)}) == 6


@given(problems())
def test_neighbours_are_the_solutions_that_differ_a_little(problem: Problem) -> None:
    solutions = by_trying(problem)
    for config in solutions:
        near = problem.neighbours(config)
        assert all(neighbour in solutions for neighbour in near)
        changed = [[n for n in config if config[n] != other[n]] for other in near]
        assert all(1 <= len(names) <= 2 for names in changed)
        alone = [s for s in solutions if sum(s[n] != config[n] for n in config) == 1]
        assert all(other in near for other in alone)


def test_a_configuration_is_told_what_is_wrong_with_it() -> None:
    problem = Problem({"a": (1, 2), "b": (1,)}, (Constraint(lambda a, b: a != b, "equal"),))
    assert problem.broken({"a": 1, "b": 1}) == ["equal"]
    assert problem.broken({"a": 3}) == ["a is 3, not one of (1, 2)", "b is None, not one of (1,)"]


def test_a_constraint_about_something_else_is_refused_at_once() -> None:
    with pytest.raises(KernelError, match="uses warps; the variables are a"):
        Problem({"a": (1,)}, (Constraint(lambda a, warps: a < warps, "few"),))
