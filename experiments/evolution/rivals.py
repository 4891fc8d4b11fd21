"""Sides of the comparison: each evolves DTLZ2 and returns the losses of its last front."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.evolution import moocore_loop
from hwnas.search.evolution.benchmark import VARIABLES
from hwnas.search.evolution.box import Box
from hwnas.search.evolution.directions import lattice_within
from hwnas.search.evolution.dtlz import dtlz2
from hwnas.search.evolution.loop import evolve

__all__ = ["OBJECTIVES", "SIDES", "Side", "can_evolve"]

OBJECTIVES = 3
_IN_PYMOO = ("nsga2", "nsga3")
_Front = npt.NDArray[np.float64]
Side = Callable[[str, int, int, int, str], _Front]
"""Function from algorithm, population, generations, seed and device to the last front's losses."""


def _ours(name: str, population: int, generations: int, seed: int, device: str) -> _Front:
    box, score = Box.cube(VARIABLES), dtlz2(OBJECTIVES)
    found = evolve(box, score, population, generations, name, seed=seed, device=device)
    return found.front_losses


def _pymoo(name: str, population: int, generations: int, seed: int, device: str) -> _Front:
    return _by_pymoo(name, population, generations, seed, {})


def _pymoo_without(name: str, population: int, generations: int, seed: int, device: str) -> _Front:
    return _by_pymoo(name, population, generations, seed, {"eliminate_duplicates": False})


def _by_pymoo(
    name: str, population: int, generations: int, seed: int, options: Mapping[str, Any]
) -> _Front:
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.algorithms.moo.nsga3 import NSGA3
    from pymoo.optimize import minimize
    from pymoo.problems import get_problem

    problem = get_problem("dtlz2", n_var=VARIABLES, n_obj=OBJECTIVES)
    if name == "nsga2":
        algorithm = NSGA2(pop_size=population, **options)
    else:
        algorithm = NSGA3(lattice_within(OBJECTIVES, population), pop_size=population, **options)
    found = minimize(problem, algorithm, ("n_gen", generations), seed=seed, verbose=False)
    front: _Front = found.F
    return front


def _moocore(name: str, population: int, generations: int, seed: int, device: str) -> _Front:
    return moocore_loop.nsga2(population, generations, seed, VARIABLES, OBJECTIVES)


SIDES: Mapping[str, Side] = {
    "hwnas": _ours,
    "moocore-loop": _moocore,
    "pymoo-without-duplicates-check": _pymoo_without,
    "pymoo": _pymoo,
}
"""Sides by name. There are two of pymoo: with its defaults, and without its check for duplicates,
which takes quadratic time."""


def can_evolve(side: str, name: str) -> bool:
    """Return whether a side has an algorithm and is installed."""
    if side == "hwnas":
        return True
    if side == "moocore-loop":
        return name == "nsga2"
    return name in _IN_PYMOO and importlib.util.find_spec("pymoo") is not None
