"""Protocol of mating and survival selection, and the registry of the algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from hwnas.search.evolution.algorithms.hype import HypE
from hwnas.search.evolution.algorithms.moead import MOEAD
from hwnas.search.evolution.algorithms.nsga2 import NSGA2
from hwnas.search.evolution.algorithms.nsga3 import NSGA3
from hwnas.search.evolution.scores import Scores

__all__ = ["ALGORITHMS", "REAL_VARIATION", "Algorithm"]


class Algorithm(Protocol):
    """Mating and survival selection for a population of constant size.

    An algorithm is constructed from the scores of the first population and a source of randomness
    on the device of the scores.
    """

    def mates(self) -> tuple[Tensor, Tensor]:
        """Return the indices of first and second parents in the population, shape (P,) each.

        The children are the first child of every couple, then the second child of every couple, as
        many as the population, so P is at least half of the population.
        """
        ...

    def survive(self, scores: Scores) -> Tensor:
        """Select the survivors.

        Args:
            scores: Scores of the population, followed by those of as many children. Children whose
                violation is infinite must not survive.

        Returns:
            Indices into these scores, shape (population,).
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
"""Arguments of `RealGenes` by algorithm, where they differ from the defaults. NSGA-III keeps
children near their parents, since its survivors are far apart (Deb and Jain, "An Evolutionary
Many-Objective Optimization Algorithm Using Reference-Point-Based Nondominated Sorting Approach",
IEEE TEC 2014)."""
