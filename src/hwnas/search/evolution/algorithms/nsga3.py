"""NSGA-III: selection by fronts, then by the emptiest niches around reference directions.

Deb and Jain, "An Evolutionary Many-Objective Optimization Algorithm Using Reference-Point-Based
Nondominated Sorting Approach, Part I", IEEE TEC 2014. If the extreme points do not span a
hyperplane, or if its intercepts are out of range, objectives are scaled by the front's worst
values.
"""

from __future__ import annotations

import scipy
import torch
from torch import Tensor

from hwnas.search.evolution.algorithms.by_rank import ByRank
from hwnas.search.evolution.directions import lattice_within
from hwnas.search.evolution.ordering import argsort, grouped
from hwnas.search.evolution.ranks import LATER
from hwnas.search.evolution.scores import Scores

__all__ = ["NSGA3", "emptiest_niches", "nearest_directions", "worst_of_front"]

_AXIS = 1e-6  # weight of the other objectives in the search for an objective's extreme point
_BLOCK = 2**26


class NSGA3(ByRank):
    """Survival by rank and niche; mating at random, with feasible before infeasible parents.

    Args:
        scores: Scores of the first population.
        generator: Source of randomness.
    """

    def __init__(self, scores: Scores, generator: torch.Generator) -> None:
        objectives = scores.losses.shape[1]
        self._directions = torch.from_numpy(lattice_within(objectives, len(scores)))
        self._directions = self._directions.to(scores.losses.device)
        self._directions /= self._directions.norm(dim=1, keepdim=True)
        self._ideal = torch.full_like(scores.losses[0], torch.inf)
        self._extremes = scores.losses[:0]
        super().__init__(scores, generator)

    def survive(self, scores: Scores) -> Tensor:
        """Select whole fronts, then the individuals of the last one in the emptiest niches."""
        ranks = self._fronts(scores)
        reached = torch.nonzero(ranks < LATER)[:, 0]
        ranks, losses = ranks[reached], scores.losses[reached]
        scaled = self._scaled(losses, ranks == 0, bool((scores.violations <= 0).any()))
        last = ranks == ranks.max()
        places = torch.nonzero(last)[:, 0]
        wanted = len(places) - (len(reached) - self._population)
        if wanted < len(places):
            niches, distances = nearest_directions(scaled, self._directions)
            noise = self._noise(len(places)), self._noise(len(self._directions))
            taken = torch.bincount(niches[~last], minlength=len(self._directions))
            chosen = emptiest_niches(niches[places], distances[places], taken, wanted, *noise)
            lives = ~last
            lives[places[chosen]] = True
            reached = reached[lives]
        self._fitness = scores.violations[reached]
        return reached

    def _scaled(self, losses: Tensor, first: Tensor, feasible: bool) -> Tensor:
        """Return losses relative to the ideal point, in units of the front's width."""
        front = losses[first]
        if feasible:
            self._ideal = torch.minimum(self._ideal, front.amin(0))
            self._extremes = _extremes(torch.cat([self._extremes, front]), self._ideal)
        ideal = self._ideal if feasible else losses.amin(0)
        worst = worst_of_front(self._extremes, front, ideal)
        return (losses - ideal) / (worst - ideal)

    def _noise(self, count: int) -> Tensor:
        return torch.rand(count, generator=self._generator, device=self._generator.device)


def _extremes(points: Tensor, ideal: Tensor) -> Tensor:
    """Return the extreme point of each objective, nearest to its axis: (objectives, objectives)."""
    objectives = points.shape[1]
    weights = torch.full((objectives, objectives), _AXIS, dtype=points.dtype, device=points.device)
    weights.fill_diagonal_(1.0)
    shifted = points - ideal
    nearest = [int((shifted / weight).amax(1).argmin()) for weight in weights]
    return points[nearest]


def worst_of_front(extremes: Tensor, front: Tensor, ideal: Tensor) -> Tensor:
    """Return the nadir estimate: intercepts of the extreme points' hyperplane, or worst values.

    Args:
        extremes: Extreme points, (objectives, objectives); empty if there are none.
        front: Losses of the front, (N, objectives).
        ideal: Ideal point, (objectives,).

    Returns:
        Shape (objectives,), above the ideal point.
    """
    worst = front.amax(0)
    if len(extremes):
        solved = torch.linalg.solve_ex(extremes - ideal, torch.ones_like(ideal))
        met = ideal + 1 / solved.result
        sensible = torch.isfinite(met) & (met > ideal + _AXIS) & (met <= extremes.amax(0) + _AXIS)
        if int(solved.info) == 0 and bool(sensible.all()):
            worst = met
    return torch.where(worst - ideal > _AXIS, worst, ideal + 1)


def nearest_directions(scaled: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest reference direction of each point.

    Args:
        scaled: Scaled losses, (N, objectives).
        directions: Unit vectors, (D, objectives).

    Returns:
        Index of the direction, int64 (N,), and distance from the line along it, (N,).
    """
    length = scaled.norm(dim=1, keepdim=True)
    unit = scaled / length.clamp(min=1e-300)
    if scaled.device.type == "cpu":  # nearest on the sphere is nearest in angle
        _, near = scipy.spatial.cKDTree(directions.numpy()).query(unit.numpy())
        nearest = torch.from_numpy(near).long()
    else:
        rows = max(1, _BLOCK // len(directions))
        nearest = torch.cat([(part @ directions.T).argmax(1) for part in torch.split(unit, rows)])
    along = (scaled * directions[nearest]).sum(1, keepdim=True)
    return nearest, (scaled - along * directions[nearest]).norm(dim=1)


def emptiest_niches(
    niches: Tensor,
    distances: Tensor,
    taken: Tensor,
    wanted: int,
    noise: Tensor,
    niche_noise: Tensor,
) -> Tensor:
    """Select candidates by niche preservation (algorithm 4 of the paper), all niches at once.

    The sequential algorithm always takes from the niche with the fewest members; ties are broken by
    ``niche_noise``. A niche without members gives its nearest candidate first; all others follow
    in the order of ``noise``. The k-th candidate of a niche would therefore be its ``taken + k``-th
    member, and the candidates with the smallest such numbers are taken.

    Args:
        niches: Niche of each of N candidates, int64 (N,).
        distances: Distances from the centre of the niche, (N,).
        taken: Number of members that each niche already has, int64 (D,).
        wanted: Number of candidates to take, at most N.
        noise: Random number of each candidate, (N,).
        niche_noise: Random number of each niche, (D,).

    Returns:
        Indices of the candidates taken, int64 (wanted,).
    """
    by_distance = grouped(niches, argsort(distances))
    held = torch.bincount(niches, minlength=len(taken))
    starts = held.cumsum(0) - held
    empty = (taken == 0) & (held > 0)
    nearest = by_distance[starts[empty]]
    key = noise.clone()
    key[nearest] = -1.0  # sorts before all others of the niche
    order = grouped(niches, argsort(key))
    own = niches[order]
    member = taken[own] + torch.arange(len(own), device=own.device) - starts[own]
    turn = grouped(member, argsort(niche_noise[own]))
    return order[turn[:wanted]]
