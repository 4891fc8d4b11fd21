"""How parents are chosen and who survives: the protocol, and the algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from hwnas.search.evolution.hype import HypE
from hwnas.search.evolution.moead import MOEAD
from hwnas.search.evolution.nsga2 import NSGA2
from hwnas.search.evolution.nsga3 import NSGA3
from hwnas.search.evolution.scores import Scores

__all__ = ["ALGORITHMS", "REAL_VARIATION", "Algorithm"]


class Algorithm(Protocol):
    """Selection for a population whose size stays the same.

    It is made from the scores of the first population and a source of randomness, whose device is
    that of the scores.
    """

    def mates(self) -> tuple[Tensor, Tensor]:
        """Couples: places of first and second parents in the population, shape (P,) each.

        The children are the first ones of all couples, then the second ones, as many as the
        population, so P is at least half of it.
        """
        ...

    def survive(self, scores: Scores) -> Tensor:
        """Who lives on.

        Args:
            scores: Of the population, then of as many children. Children whose violation is
                infinite must not survive.

        Returns:
            Places in these scores, shape (population,).
        """
        ...


ALGORITHMS: Mapping[str, Callable[[Scores, torch.Generator], Algorithm]] = {
    "hype": HypE,
    "moead": MOEAD,
    "nsga2": NSGA2,
    "nsga3": NSGA3,
}
"""Algorithms by name."""

REAL_VARIATION: Mapping[str, Mapping[str, float]] = {
    "nsga3": {"crossover": 1.0, "crossover_index": 30.0},
}
"""How points of a box vary, where that is not as `RealGenes` has it by default: NSGA-III keeps
children near their parents, since its survivors are far apart (Deb and Jain, "An Evolutionary
Many-Objective Optimization Algorithm Using Reference-Point-Based Nondominated Sorting Approach",
IEEE TEC 2014)."""
