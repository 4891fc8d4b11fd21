"""Reference directions spread over the objectives."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy

__all__ = ["lattice", "lattice_within", "spread_directions"]

Directions = npt.NDArray[np.float64]


def lattice(objectives: int, partitions: int) -> Directions:
    """Return all points of the unit simplex whose coordinates are multiples of 1 / partitions.

    Das and Dennis, "Normal-Boundary Intersection", SIAM J. Optimization 1998.

    Returns:
        Shape (binomial(partitions + objectives - 1, objectives - 1), objectives); rows sum to 1.
    """
    if objectives == 3:  # vectorised: the usual case, possibly with millions of points
        first, second = np.triu_indices(partitions + 1)
        whole = np.stack([first, second - first, partitions - second], axis=1)
        return whole / partitions
    bars = combinations(range(partitions + objectives - 1), objectives - 1)
    at = np.array(list(bars), dtype=np.int64).reshape(-1, objectives - 1)
    edge = np.full((len(at), 1), -1)
    full = np.full((len(at), 1), partitions + objectives - 1)
    steps: Directions = (np.diff(np.hstack([edge, at, full]), axis=1) - 1) / partitions
    return steps


def lattice_within(objectives: int, most: int) -> Directions:
    """Return the finest lattice of at most ``most`` points, but at least that of the corners."""
    partitions = 1
    while math.comb(partitions + objectives, objectives - 1) <= most:
        partitions += 1
    return lattice(objectives, partitions)


def spread_directions(objectives: int, count: int) -> Directions:
    """Return exactly ``count`` points of the simplex: a lattice, filled up by a Sobol sequence."""
    grid = lattice_within(objectives, count)[:count]
    missing = count - len(grid)
    if not missing:
        return grid
    sobol = scipy.stats.qmc.Sobol(objectives, scramble=False)
    sobol.fast_forward(2)  # the origin has no direction, the centre is often on the lattice
    # Exponential variables, divided by their sum, are uniform on the simplex.
    drawn = -np.log1p(-sobol.random(missing))
    return np.vstack([grid, drawn / drawn.sum(1, keepdims=True)])
