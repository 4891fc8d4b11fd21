"""Result of an evolution: the last generation and its front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.search.evolution.scores import Scores
from hwnas.search.objectives.front import non_dominated

__all__ = ["EvolutionResult", "result_of"]

Individuals = npt.NDArray[Any]
"""Int64 codes, or float32 points of a box; shape (N, variables)."""


@dataclass(frozen=True, eq=False)
class EvolutionResult:
    """Last generation of an evolution, with its front.

    Attributes:
        population: Individuals of the last generation.
        losses: Losses of the population, float64 (N, objectives).
        violations: Total constraint violation of each individual, float64 (N,); 0 is feasible.
        front: Non-dominated feasible individuals, each once, ordered by their losses; empty if none
            is feasible.
        front_losses: Losses of the front.
        evaluations: Number of individuals that were scored.
    """

    population: Individuals
    losses: npt.NDArray[np.float64]
    violations: npt.NDArray[np.float64]
    front: Individuals
    front_losses: npt.NDArray[np.float64]
    evaluations: int


def result_of(population: Individuals, scores: Scores, evaluations: int) -> EvolutionResult:
    """Build the result from the last generation and its scores."""
    losses, violations = scores.losses.cpu().numpy(), scores.violations.cpu().numpy()
    feasible = np.flatnonzero(violations <= 0)
    best = feasible[non_dominated(losses[feasible])]
    _, first = np.unique(population[best], axis=0, return_index=True)
    best = best[first]
    best = best[np.lexsort(losses[best].T[::-1])]
    return EvolutionResult(
        population, losses, violations, population[best], losses[best], evaluations
    )
