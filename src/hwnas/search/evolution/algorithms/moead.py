"""MOEA/D: decomposition into one scalar subproblem per individual, with neighbourhoods of these.

Zhang and Li, "MOEA/D: A Multiobjective Evolutionary Algorithm Based on Decomposition", IEEE TEC
2007, with penalty-based boundary intersection (its section V-A), and with occasional mating outside
the neighbourhood as in Li and Zhang, IEEE TEC 2009. All subproblems are updated at once, as in
EvoMO: each subproblem takes the best of its own solution and its neighbours' children of this
generation. In the original each child may replace solutions as soon as it is made. Objectives are
scaled by the population's range.
"""

from __future__ import annotations

import scipy
import torch
from torch import Tensor

from hwnas.search.evolution.directions import spread_directions
from hwnas.search.evolution.scores import Scores

__all__ = ["MOEAD", "best_for_problems", "boundary_intersection"]

_NEIGHBOURS = 20
_NEAR = 0.9  # share of couples from the neighbourhood
_PENALTY = 5.0


class MOEAD:
    """Mating and survival selection by decomposition.

    Args:
        scores: Scores of the first population; individual i belongs to subproblem i.
        generator: Source of randomness.
    """

    def __init__(self, scores: Scores, generator: torch.Generator) -> None:
        self._generator = generator
        device = scores.losses.device
        directions = spread_directions(scores.losses.shape[1], len(scores))
        count = min(_NEIGHBOURS, len(scores))
        _, near = scipy.spatial.cKDTree(directions).query(directions, count)
        self._near = torch.from_numpy(near).long().to(device)
        self._directions = torch.from_numpy(directions).to(device)
        self._directions /= self._directions.norm(dim=1, keepdim=True)
        self._ideal = scores.losses.amin(0)

    def mates(self) -> tuple[Tensor, Tensor]:
        """Return two parents for each subproblem: two of its neighbours, or any two individuals."""
        count, near = self._near.shape
        device = self._near.device
        places = torch.randint(near, (count, 2), generator=self._generator, device=device)
        local = self._near.gather(1, places)
        anyone = torch.randint(count, (count, 2), generator=self._generator, device=device)
        stays = torch.rand((count, 1), generator=self._generator, device=device) < _NEAR
        chosen = torch.where(stays, local, anyone)
        return chosen[:, 0], chosen[:, 1]

    def survive(self, scores: Scores) -> Tensor:
        """Select each subproblem's own solution, or a neighbour's child that is better for it."""
        known = torch.isfinite(scores.violations)
        self._ideal = torch.minimum(self._ideal, scores.losses[known].amin(0))
        count = len(self._near)
        scale = scores.losses[:count].amax(0) - self._ideal
        scaled = (scores.losses - self._ideal) / torch.where(scale > 0, scale, 1.0)
        return best_for_problems(scaled, scores.violations, self._directions, self._near)


def best_for_problems(
    scaled: Tensor, violations: Tensor, directions: Tensor, near: Tensor
) -> Tensor:
    """Return the best of each subproblem's own solution and the children of its neighbourhood.

    Args:
        scaled: Scaled losses relative to the ideal point, (2 N, objectives): solutions, then
            children.
        violations: Constraint violations, (2 N,); less violation comes first.
        directions: Unit vectors of the subproblems, (N, objectives).
        near: Indices of the neighbours of each subproblem, (N, T).

    Returns:
        Indices into ``scaled``, (N,); a tie goes to the solution, then to the first neighbour.
    """
    count = len(near)
    own = torch.arange(count, device=near.device)
    candidates = torch.cat([own[:, None], count + near], dim=1)
    value = boundary_intersection(scaled[candidates], directions[:, None])
    violated = violations[candidates]
    least = violated.amin(1, keepdim=True)
    value = torch.where(violated > least, torch.inf, value)
    return candidates.gather(1, value.argmin(1, keepdim=True))[:, 0]


def boundary_intersection(scaled: Tensor, directions: Tensor) -> Tensor:
    """Return the penalty-based boundary intersection (PBI): distance along and from a direction.

    The distance from the direction is multiplied by a penalty of 5.

    Args:
        scaled: Scaled losses relative to the ideal point, (..., objectives).
        directions: Unit vectors, (..., objectives).
    """
    along = (scaled * directions).sum(-1)
    aside = (scaled - along[..., None] * directions).norm(dim=-1)
    total: Tensor = along + _PENALTY * aside
    return total
