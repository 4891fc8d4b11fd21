"""Non-dominated sorting of large populations into as many fronts as are needed.

Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", 2002. On a CPU moocore
sorts; elsewhere tensor operations do, with a dominance matrix that is made in blocks and not kept.
"""

from __future__ import annotations

import moocore
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hwnas.search.evolution.ordering import argsort
from hwnas.search.evolution.scores import Scores

__all__ = ["LATER", "fronts", "ranks_by_moocore", "ranks_by_tensors"]

LATER = 2**31 - 1
"""Rank of the individuals behind the fronts that are needed."""

_PATIENCE = 3  # ranking all points at once costs as much as finding this many fronts one by one
_SAMPLE = 2_000  # points from which the size of a front is estimated
_BLOCK = 2**26  # comparisons in memory at a time


def fronts(scores: Scores, needed: int, expected: int | None = None) -> Tensor:
    """Rank feasible individuals by fronts, then infeasible ones by their violation.

    Args:
        scores: Scores of N individuals.
        needed: Number of individuals after which no further front is computed.
        expected: Likely size of the first front, e.g. that of the previous generation; it saves
            time and changes no rank.

    Returns:
        Int64 of shape (N,): 0 for the first front, `LATER` for individuals that are not needed.
    """
    feasible = scores.violations <= 0
    if bool(feasible.all()):
        return _ranks(scores.losses, needed, expected)
    ranks = torch.full((len(scores),), LATER, device=scores.losses.device)
    kept = int(feasible.sum())
    last = -1
    if kept:
        ranks[feasible] = _ranks(scores.losses[feasible], min(needed, kept), expected)
        last = int(ranks[feasible & (ranks < LATER)].max())
    if kept < needed:
        _, place = torch.unique(scores.violations[~feasible], return_inverse=True)
        most = torch.searchsorted(torch.bincount(place).cumsum(0), needed - kept)
        ranks[~feasible] = torch.where(place <= most, last + 1 + place, LATER)
    return ranks


def _ranks(losses: Tensor, needed: int, expected: int | None) -> Tensor:
    if losses.device.type != "cpu":
        return ranks_by_tensors(losses, needed)
    return torch.from_numpy(ranks_by_moocore(losses.numpy(), needed, expected))


def ranks_by_moocore(
    losses: npt.NDArray[np.float64], needed: int, expected: int | None = None
) -> npt.NDArray[np.int64]:
    """Rank front by front with moocore, and all remaining points at once if fronts are small.

    Args:
        losses: Losses of the points, (N, objectives).
        needed: As for `fronts`; at most N.
        expected: As for `fronts`.
    """
    ranks = np.full(len(losses), LATER, np.int64)
    left = np.arange(len(losses))
    rank = 0
    size = _most_likely(losses) if expected is None else expected
    while needed > 0:
        if needed > _PATIENCE * size:
            found = moocore.pareto_rank(losses[left])
            last = np.searchsorted(np.bincount(found).cumsum(), needed)
            ranks[left] = np.where(found <= last, rank + found, LATER)
            break
        first = moocore.is_nondominated(losses[left], keep_weakly=True)
        ranks[left[first]] = rank
        size = int(first.sum())
        left, rank, needed = left[~first], rank + 1, needed - size
    return ranks


def _most_likely(losses: npt.NDArray[np.float64]) -> int:
    """Return an upper estimate of the size of the first front.

    The share of non-dominated points is larger in a sample than among all points.
    """
    if len(losses) < 10 * _SAMPLE:  # a sample would not save time
        return len(losses)
    some = losses[:: len(losses) // _SAMPLE]
    front = int(moocore.is_nondominated(some, keep_weakly=True).sum())
    return front * len(losses) // len(some)


def ranks_by_tensors(losses: Tensor, needed: int) -> Tensor:
    """Rank points by the number of points that dominate each one.

    The numbers are counted once; each front found is then subtracted from those of the other
    points. This takes 2 N^2 comparisons for any number of fronts, and little memory.

    Args:
        losses: Losses of the points, (N, objectives).
        needed: As for `fronts`; at most N.
    """
    order, places, group = _lexicographic(losses)
    counts = _dominators(places, group, places, group, sorted_alike=True)
    ranks = torch.full_like(counts, LATER)
    left = torch.arange(len(losses), device=losses.device)
    rank = 0
    while needed > 0:
        free = counts[left] == 0
        front, left = left[free], left[~free]
        ranks[order[front]] = rank
        rank, needed = rank + 1, needed - len(front)
        if needed > 0:
            counts[left] -= _dominators(places[left], group[left], places[front], group[front])
    return ranks


def _lexicographic(losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort points lexicographically, so that no point is dominated by a later one.

    Returns:
        Order of the points, (N,); rank of each value in its objective, int32 (N, objectives);
        index of each distinct point, int32 (N,). The last two are in sorted order.
    """
    places = torch.empty_like(losses, dtype=torch.int32)
    for objective, values in enumerate(losses.T):
        _, place = torch.unique(values, return_inverse=True)
        places[:, objective] = place.int()
    order = torch.arange(len(losses), device=losses.device)
    for place in reversed(places.T):
        order = order[argsort(place[order])]
    places = places[order]
    new = (places[1:] != places[:-1]).any(1)
    group = torch.cat([new.new_zeros(min(1, len(losses))), new]).cumsum(0).int()
    return order, places, group


def _dominators(
    places: Tensor,
    group: Tensor,
    others: Tensor,
    other_group: Tensor,
    *,
    sorted_alike: bool = False,
) -> Tensor:
    """Count the others that dominate each point, int64 (N,); both are in lexicographic order.

    Args:
        places: Ranks of the points' values, (N, objectives).
        group: Index of each distinct point, (N,): equal for equal points, smaller for earlier ones.
        others: Ranks of the others' values, (M, objectives).
        other_group: Index of each distinct point of the others, (M,).
        sorted_alike: True if the others are the points themselves, so that later ones are skipped.
    """
    counts = torch.zeros(len(places), dtype=torch.int64, device=places.device)
    columns = [column.contiguous() for column in others.T]
    rows = max(1, _BLOCK // max(1, len(others)))
    for start in range(0, len(places), rows):
        end = min(start + rows, len(places))
        seen = end if sorted_alike else len(others)
        dominated = other_group[:seen] < group[start:end, None]
        for objective, column in enumerate(columns):
            dominated &= column[:seen] <= places[start:end, objective, None]
        counts[start:end] = dominated.sum(1)
    return counts
