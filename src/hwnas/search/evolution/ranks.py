"""Non-dominated fronts of large populations, as many as are needed.

Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", 2002. On a CPU by
moocore, elsewhere by tensors, whose dominance matrix is made in blocks and never kept.
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
"""Rank of all that lies behind the fronts that are needed."""

_PATIENCE = 3  # ranking all at once costs as much as finding so many fronts one by one
_SAMPLE = 2_000  # points from which the size of a front is guessed
_BLOCK = 2**26  # comparisons held at a time


def fronts(scores: Scores, needed: int, expected: int | None = None) -> Tensor:
    """Rank individuals, feasible first: by fronts, then the others by their violation.

    Args:
        scores: Of N individuals.
        needed: Fronts are told apart until they hold so many.
        expected: Likely size of the first front, e.g. that of the generation before; saves time
            and changes no rank.

    Returns:
        Int64 of shape (N,): 0 for the first front, `LATER` for what is not needed.
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
    """Rank front by front, and the rest at once where the fronts are small.

    Args:
        losses: Shape (N, objectives).
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
    """More points than are likely on the first front: of a few, a larger share is."""
    if len(losses) < 10 * _SAMPLE:  # not worth a look
        return len(losses)
    some = losses[:: len(losses) // _SAMPLE]
    front = int(moocore.is_nondominated(some, keep_weakly=True).sum())
    return front * len(losses) // len(some)


def ranks_by_tensors(losses: Tensor, needed: int) -> Tensor:
    """By counting who dominates whom, once; each front is then taken from the counts of the rest.

    Twice N^2 comparisons, whatever the number of fronts, and little memory.

    Args:
        losses: Shape (N, objectives).
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
    """Points in lexicographic order, where none is dominated by a later one.

    Returns:
        The order (N,); the place of each value in its objective, int32 (N, objectives); the number
        of each distinct point (N,), int32. The last two in that order.
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
    """How many of the others dominate each point, (N,) int64; both in lexicographic order.

    Args:
        places: Shape (N, objectives).
        group: Equal points have the same number, (N,); an earlier one has a smaller number.
        others: Shape (M, objectives).
        other_group: Shape (M,).
        sorted_alike: The others are the points themselves, so later ones need no look.
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
