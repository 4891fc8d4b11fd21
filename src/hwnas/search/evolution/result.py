"""What an evolution gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.search.evolution.scores import Scores
from hwnas.search.front import non_dominated

__all__ = ["Evolution", "result_of"]

Individuals = npt.NDArray[Any]
"""Int64 codes, or float32 points of a box; shape (N, variables)."""


@dataclass(frozen=True, eq=False)
class Evolution:
    """The last generation.

    Attributes:
        population: Its individuals.
        losses: Their losses, float64 of shape (N, objectives).
        violations: By how much each breaks the constraints, float64 of shape (N,); 0 is feasible.
        front: The feasible ones that no other dominates, each once, ordered by their losses; none
            where nothing is feasible.
        front_losses: Their losses.
        evaluations: How many individuals were scored.
    """

    population: Individuals
    losses: npt.NDArray[np.float64]
    violations: npt.NDArray[np.float64]
    front: Individuals
    front_losses: npt.NDArray[np.float64]
    evaluations: int


def result_of(population: Individuals, scores: Scores, evaluations: int) -> Evolution:
    """The last generation with its front."""
    losses, violations = scores.losses.cpu().numpy(), scores.violations.cpu().numpy()
    feasible = np.flatnonzero(violations <= 0)
    best = feasible[non_dominated(losses[feasible])]
    _, first = np.unique(population[best], axis=0, return_index=True)
    best = best[first]
    best = best[np.lexsort(losses[best].T[::-1])]
    return Evolution(population, losses, violations, population[best], losses[best], evaluations)
