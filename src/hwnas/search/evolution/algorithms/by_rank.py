"""Base class of the algorithms that select by non-dominated fronts first."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hwnas.search.evolution.algorithms.mating import tournaments
from hwnas.search.evolution.ranks import fronts
from hwnas.search.evolution.scores import Scores

__all__ = ["ByRank"]


class ByRank(ABC):
    """Algorithm with tournament mating on the fitness that ``survive`` sets; smaller is better.

    Args:
        scores: Scores of the first population.
        generator: Source of randomness.
    """

    def __init__(self, scores: Scores, generator: torch.Generator) -> None:
        self._population = len(scores)
        self._generator = generator
        self._fitness = scores.violations
        self._first_front: int | None = None
        self.survive(scores)

    def mates(self) -> tuple[Tensor, Tensor]:
        """Return the winners of binary tournaments as parents."""
        return tournaments(self._fitness, (self._population + 1) // 2, self._generator)

    @abstractmethod
    def survive(self, scores: Scores) -> Tensor:
        """Select the survivors; see `hwnas.search.evolution.algorithm.Algorithm`."""

    def _fronts(self, scores: Scores) -> Tensor:
        """Rank a population and its children; see `hwnas.search.evolution.ranks.fronts`."""
        ranks = fronts(scores, self._population, self._first_front)
        self._first_front = int((ranks == 0).sum())
        return ranks
