"""Short NSGA-II loop in NumPy with moocore's non-dominated sort, as a user might write it."""

from __future__ import annotations

from typing import Any

import moocore
import numpy as np
import numpy.typing as npt

__all__ = ["nsga2"]

_Array = npt.NDArray[np.float64]
_CROSSOVER, _CROSSOVER_INDEX, _MUTATION_INDEX = 0.9, 15.0, 20.0


def nsga2(population: int, generations: int, seed: int, variables: int, objectives: int) -> _Array:
    """Evolve DTLZ2 and return the losses of the last front, of shape (N, objectives)."""
    rng = np.random.default_rng(seed)
    points = rng.random((population, variables))
    losses = _dtlz2(points, objectives)
    ranks = moocore.pareto_rank(losses)
    crowding = _crowding(losses, ranks)
    for _ in range(generations - 1):
        drawn = rng.integers(0, population, (2, population))
        key = ranks + 1 / (2 + crowding)  # the lower front wins, then the less crowded individual
        parents = points[np.where(key[drawn[0]] <= key[drawn[1]], *drawn)]
        points = np.concatenate([points, _children(parents, rng)])
        losses = np.concatenate([losses, _dtlz2(points[population:], objectives)])
        ranks = moocore.pareto_rank(losses)
        crowding = _crowding(losses, ranks)
        kept = np.lexsort((-crowding, ranks))[:population]
        points, losses, ranks, crowding = points[kept], losses[kept], ranks[kept], crowding[kept]
    front: _Array = losses[ranks == 0]
    return front


def _crowding(losses: _Array, ranks: npt.NDArray[Any]) -> _Array:
    total = np.zeros(len(losses))
    for values in losses.T:
        order = np.lexsort((values, ranks))
        gaps = np.full(len(order), np.inf)
        inner = ranks[order[2:]] == ranks[order[:-2]]
        gaps[1:-1][inner] = (values[order[2:]] - values[order[:-2]])[inner]
        total[order] += gaps / max(float(np.ptp(values)), 1e-12)
    return total


def _children(parents: _Array, rng: np.random.Generator) -> _Array:
    """Return children by simulated binary crossover and polynomial mutation, within bounds."""
    couples = len(parents) // 2
    first, second = parents[:couples], parents[couples : 2 * couples]
    u = rng.random(first.shape)
    spread = np.where(u < 0.5, 2 * u, 0.5 / (1 - u)) ** (1 / (_CROSSOVER_INDEX + 1))
    chance = rng.random(u.shape)  # half of the variables are mixed, and half of those are swapped
    mixed = (chance < 0.5) & (rng.random((len(u), 1)) < _CROSSOVER)
    half = np.where(mixed, np.where(chance < 0.25, spread, -spread), 1) * (first - second) / 2
    middle = (first + second) / 2
    young = np.concatenate([middle + half, middle - half])
    mutated = np.nonzero(rng.random(young.shape) < 1 / young.shape[1])
    u = rng.random(len(mutated[0]))
    power = 1 / (_MUTATION_INDEX + 1)
    young[mutated] += np.where(u < 0.5, (2 * u) ** power - 1, 1 - (2 - 2 * u) ** power)
    return young.clip(0, 1)


def _dtlz2(points: _Array, objectives: int) -> _Array:
    angles = points[:, : objectives - 1] * (np.pi / 2)
    radius = 1 + ((points[:, objectives - 1 :] - 0.5) ** 2).sum(1)
    losses = np.repeat(radius[:, None], objectives, 1)
    for place in range(objectives - 1):
        losses[:, : objectives - 1 - place] *= np.cos(angles[:, place, None])
        losses[:, objectives - 1 - place] *= np.sin(angles[:, place])
    return losses
