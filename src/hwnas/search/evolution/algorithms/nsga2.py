"""NSGA-II: selection by fronts, then by crowding distance.

Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE TEC 2002.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hwnas.search.evolution.algorithms.by_rank import ByRank
from hwnas.search.evolution.ordering import argsort, grouped
from hwnas.search.evolution.ranks import LATER
from hwnas.search.evolution.scores import Scores

__all__ = ["NSGA2", "crowding"]


class NSGA2(ByRank):
    """Mating and survival by rank and crowding distance; see `ByRank`."""

    def survive(self, scores: Scores) -> Tensor:
        """Select whole fronts, then the least crowded of the last one; a tie goes to the first."""
        ranks = self._fronts(scores)
        reached = torch.nonzero(ranks < LATER)[:, 0]
        ranks = ranks[reached]
        distance = crowding(scores.losses[reached], ranks)
        spare = len(reached) - self._population
        if spare > 0:
            last = torch.nonzero(ranks == ranks.max())[:, 0]
            crowded = last[argsort(-distance[last])][len(last) - spare :]
            lives = torch.ones_like(reached, dtype=torch.bool)
            lives[crowded] = False
            reached, ranks, distance = reached[lives], ranks[lives], distance[lives]
        self._fitness = ranks + 1 / (1 + distance)
        return reached


def crowding(losses: Tensor, ranks: Tensor) -> Tensor:
    """Return the crowding distances: gaps between a point's neighbours, summed over objectives.

    Each gap is measured on the point's front and divided by the front's range of the objective.

    Args:
        losses: Losses of the points, (N, objectives).
        ranks: Indices of the fronts, from 0, (N,).

    Returns:
        Float64 of shape (N,), infinite at the ends of a front. Among points with equal loss, the
        first in the array counts as the smaller.
    """
    front = ranks.sort().values
    ends = torch.ones(len(ranks) + 1, dtype=torch.bool, device=losses.device)
    torch.ne(front[1:], front[:-1], out=ends[1:-1])
    first, last = torch.nonzero(ends[:-1])[:, 0], torch.nonzero(ends[1:])[:, 0]
    columns = losses.T.contiguous()
    order = torch.stack([grouped(ranks, argsort(values)) for values in columns])
    ordered = columns.gather(1, order)
    width = ordered[:, last] - ordered[:, first]  # of each front
    width[width == 0] = torch.inf
    gaps = torch.zeros_like(columns)
    torch.sub(ordered[:, 2:], ordered[:, :-2], out=gaps[:, 1:-1])
    gaps /= width.repeat_interleave(last - first + 1, dim=1)
    gaps[:, first] = gaps[:, last] = torch.inf
    return ordered.scatter_(1, order, gaps).sum(0)
