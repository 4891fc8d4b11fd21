"""Search for the density of each layer, at a given average density of the network.

The vector of densities is found by evolution, first on a coarse grid and then on finer ones around
the best vector (Tyr-the-Pruner; see `DensitySupernet`). It starts from equal densities, and on the
coarse grid also from those that are best if the errors of layers add up. For blocks of a vision
transformer, LPViT (Xu et al., ECCV 2024) minimises such a sum together with the hardware cost.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.deploy.sparsity.supernet import DensitySupernet

__all__ = ["Grid", "additive", "around", "evolved", "search_densities"]

Vector = tuple[int, ...]
"""Number of a density within the grid of each layer."""

_INTERVALS = (1 / 8, 1 / 16, 1 / 32)
_REACH = 2  # intervals on each side
_PARENTS, _CHILDREN, _GENERATIONS = 4, 8, 8
_ROUNDING = 1 + 1e-9  # of sums of costs


@dataclass(frozen=True)
class Grid:
    """Densities that each layer may have, in ascending order."""

    supernet: DensitySupernet
    levels: tuple[tuple[float, ...], ...]

    def densities(self, vector: Vector) -> dict[str, float]:
        """Return the densities of a vector, by the names of layers."""
        chosen = (levels[i] for levels, i in zip(self.levels, vector, strict=True))
        return dict(zip(self.supernet.names, chosen, strict=True))

    def error(self, vector: Vector) -> float:
        """Return the error of the network with these densities."""
        return self.supernet.error(self.densities(vector))

    def fits(self, vector: Vector) -> bool:
        """Return whether the densities keep the budget."""
        return self.supernet.cost(self.densities(vector)) <= self.supernet.budget * _ROUNDING

    def moved(self, vector: Vector, place: int, by: int) -> Vector | None:
        """Return a vector with another density of one layer; None beyond the ends of its grid."""
        new = vector[place] + by
        if not 0 <= new < len(self.levels[place]):
            return None
        return (*vector[:place], new, *vector[place + 1 :])


def search_densities(
    supernet: DensitySupernet, seed: int = 0, intervals: Sequence[float] = _INTERVALS
) -> dict[str, float]:
    """Return a density for each layer of a supernet, whose total cost keeps its budget.

    Args:
        supernet: Supernet; its network has the dense weights afterwards.
        seed: Seed of the evolution.
        intervals: Distances of neighbouring densities, from coarse to fine.
    """
    rng = random.Random(seed)
    share = supernet.settings.share
    found = dict.fromkeys(supernet.names, share)
    for interval in intervals:
        levels = {name: around(density, interval) for name, density in found.items()}
        supernet.build(levels)
        grid = Grid(supernet, tuple(levels[name] for name in supernet.names))
        start = tuple(levels[name].index(found[name]) for name in supernet.names)
        starts = [start, additive(grid, start)] if interval == intervals[0] else [start]
        found = grid.densities(evolved(grid, starts, rng))
    supernet.restore()
    return found


def around(density: float, interval: float) -> tuple[float, ...]:
    """Return a density and its neighbours at an interval, all in (0, 1]."""
    near = {density + step * interval for step in range(-_REACH, _REACH + 1)}
    return tuple(sorted({density, *(each for each in near if interval / 2 <= each <= 1)}))


def additive(grid: Grid, start: Vector) -> Vector:
    """Return the vector with the least sum of errors of single layers, as far as it is convex.

    From the highest densities, the step that adds the least error for the cost that it saves is
    taken, until the budget is kept. If even the lowest densities exceed it, ``start`` is returned.
    """
    names, costs = grid.supernet.names, grid.supernet.costs
    errors = [
        [grid.supernet.error({name: density}) for density in levels]
        for name, levels in zip(names, grid.levels, strict=True)
    ]
    vector: Vector = tuple(len(levels) - 1 for levels in grid.levels)

    def error_by_saving(place: int) -> float:
        new, old = vector[place] - 1, vector[place]
        saved = costs[names[place]] * (grid.levels[place][old] - grid.levels[place][new])
        return (errors[place][new] - errors[place][old]) / saved

    while not grid.fits(vector):
        able = [place for place, level in enumerate(vector) if level > 0]
        if not able:
            return start
        vector = grid.moved(vector, min(able, key=error_by_saving), -1) or vector
    return vector


def evolved(grid: Grid, starts: Sequence[Vector], rng: random.Random) -> Vector:
    """Return the best vector that an evolution finds; never worse than those that it starts from.

    Args:
        grid: Grid of densities.
        starts: Vectors that keep the budget.
        rng: Source of randomness.
    """
    known: dict[Vector, float] = {vector: grid.error(vector) for vector in starts}
    for _ in range(_GENERATIONS):
        parents = sorted(known, key=known.__getitem__)[:_PARENTS]
        children = {_mutated(grid, rng.choice(parents), rng) for _ in range(_CHILDREN)}
        known |= {child: grid.error(child) for child in sorted(children - known.keys())}
    return _polished(grid, known, rng)


def _polished(grid: Grid, known: dict[Vector, float], rng: random.Random) -> Vector:
    """Return the best known vector after one attempt to change each of its densities alone.

    Less density in one layer may be better, since its error can make up for that of another.
    """
    best = min(known, key=known.__getitem__)
    for place in rng.sample(range(len(best)), len(best)):
        for new in (grid.moved(best, place, -1), grid.moved(best, place, 1)):
            if new is None or not grid.fits(new):
                continue
            if new not in known:
                known[new] = grid.error(new)
            if known[new] < known[best]:
                best = new
                break
    return best


def _mutated(grid: Grid, parent: Vector, rng: random.Random) -> Vector:
    """Return a vector with more density in one layer, and as much less in others as it takes."""
    order = list(range(len(parent)))
    rng.shuffle(order)
    raised = next((v for place in order if (v := grid.moved(parent, place, 1))), parent)
    vector, changed = raised, {p for p in order if raised[p] != parent[p]}
    others = [place for place in order if place not in changed]
    while not grid.fits(vector):
        lower = [v for place in others if (v := grid.moved(vector, place, -1))]
        if not lower:
            return parent
        vector = rng.choice(lower)
    for place in rng.sample(others, len(others)):  # what is left of the budget
        higher = grid.moved(vector, place, 1)
        vector = higher if higher is not None and grid.fits(higher) else vector
    return vector
