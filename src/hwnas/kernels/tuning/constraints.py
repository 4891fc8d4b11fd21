"""Constraint problem in integers, whose solutions are the allowed configurations of a kernel.

As in ConstrINT of FlashRNN (Poeppel, Beck and Hochreiter, ICLR 2025, section 4), limits of
registers, shared memory and the network are written as constraints, and a solver lists what
satisfies all of them, instead of a grid of which most configurations would not compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from random import Random
from typing import Any

from hwnas.errors import InfeasibleError, KernelError

__all__ = ["Constraint", "Problem"]


@dataclass(frozen=True)
class Constraint:
    """Constraint on some variables.

    Attributes:
        holds: Function that returns whether the constraint holds; its parameters are named like
            variables.
        reason: Message if the constraint does not hold.
    """

    holds: Callable[..., bool]
    reason: str

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the variables."""
        code: Any = self.holds.__code__
        return tuple(code.co_varnames[: code.co_argcount])


@dataclass(frozen=True)
class Problem:
    """Integer variables and constraints on them.

    Attributes:
        variables: Allowed values of each variable by its name, in the order in which they are
            tried.
        constraints: Constraints that all hold in a solution.
    """

    variables: Mapping[str, tuple[int, ...]]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        for constraint in self.constraints:
            if strange := set(constraint.names) - set(self.variables):
                raise KernelError(
                    f"a constraint ({constraint.reason!r}) uses {', '.join(sorted(strange))}; "
                    f"the variables are {', '.join(self.variables)}"
                )

    def solutions(self) -> Iterator[dict[str, int]]:
        """Yield all solutions, by depth-first search with forward checking.

        A constraint is checked as soon as all its variables but one have a value, and removes
        values of that one. If none is left, the search backtracks (Haralick and Elliott, Artificial
        Intelligence 1980).
        """
        yield from self._extended({}, {k: tuple(v) for k, v in self.variables.items()})

    def broken(self, config: Mapping[str, int]) -> list[str]:
        """Return the reasons why a configuration is not a solution; empty if it is one."""
        reasons = [
            f"{name} is {config.get(name)}, not one of {values}"
            for name, values in self.variables.items()
            if config.get(name) not in values
        ]
        return reasons or [
            constraint.reason
            for constraint in self.constraints
            if not constraint.holds(*(config[name] for name in constraint.names))
        ]

    def random(self, random: Random) -> dict[str, int]:
        """Return a random solution; all solutions are possible, but not equally likely.

        Raises:
            InfeasibleError: There is no solution.
        """
        names = random.sample([*self.variables], len(self.variables))
        shuffled = {
            name: tuple(random.sample(self.variables[name], len(self.variables[name])))
            for name in names
        }
        found = next(Problem(shuffled, self.constraints).solutions(), None)
        if found is None:
            raise InfeasibleError("no configuration satisfies all constraints")
        return {name: found[name] for name in self.variables}

    def neighbours(self, config: Mapping[str, int]) -> list[dict[str, int]]:
        """Return the solutions with one variable changed, or with two changed by one step each.

        Two are changed at once because constraints can tie variables together so that no change of
        a single variable is a solution.

        Args:
            config: Allowed values of the variables, which need not satisfy the constraints.
        """
        single = [
            {**config, name: value}
            for name, values in self.variables.items()
            for value in values
            if value != config[name]
        ]
        steps = {name: self._steps(name, config[name]) for name in self.variables}
        double = [
            {**config, one: a, other: b}
            for one, other in combinations(self.variables, 2)
            for a in steps[one]
            for b in steps[other]
        ]
        return [near for near in single + double if not self.broken(near)]

    def _steps(self, name: str, value: int) -> tuple[int, ...]:
        """Return the values next to a value."""
        values = self.variables[name]
        place = values.index(value)
        return values[max(place - 1, 0) : place] + values[place + 1 : place + 2]

    def _extended(
        self, chosen: dict[str, int], left: dict[str, tuple[int, ...]]
    ) -> Iterator[dict[str, int]]:
        pruned = self._pruned(chosen, left)
        if pruned is None:
            return
        if not pruned:
            yield chosen
            return
        name = next(iter(pruned))
        others = {other: values for other, values in pruned.items() if other != name}
        for value in pruned[name]:
            yield from self._extended(chosen | {name: value}, others)

    def _pruned(
        self, chosen: dict[str, int], left: dict[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]] | None:
        """Return the values left for the free variables, or None if a variable has none left."""
        left = dict(left)
        for constraint in self.constraints:
            free = [name for name in constraint.names if name not in chosen]
            if len(free) > 1 or (not free and left):
                continue
            if not free:
                if not constraint.holds(*(chosen[name] for name in constraint.names)):
                    return None
                continue
            [name] = free
            left[name] = tuple(
                value
                for value in left[name]
                if constraint.holds(*((chosen | {name: value})[n] for n in constraint.names))
            )
            if not left[name]:
                return None
        return left
