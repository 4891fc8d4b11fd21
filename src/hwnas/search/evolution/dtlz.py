"""DTLZ2 test problem, whose front is an eighth of a sphere for three objectives.

Deb, Thiele, Laumanns and Zitzler, "Scalable Test Problems for Evolutionary Multiobjective
Optimization", 2005.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hwnas.search.evolution.directions import lattice_within

__all__ = ["dtlz2", "dtlz2_front"]


def dtlz2(objectives: int) -> Callable[[Tensor], Tensor]:
    """Return the score function of DTLZ2.

    Args:
        objectives: Number of objectives, at least 2.

    Returns:
        A function from points of the unit cube, (N, variables), with more than objectives - 1
        variables, to losses, float64 (N, objectives).
    """

    def losses(points: Tensor) -> Tensor:
        # In float32 the cosine of a right angle is below 0, so a larger radius would be better.
        angles = points[:, : objectives - 1].double() * (torch.pi / 2)
        radius = 1 + (points[:, objectives - 1 :] - 0.5).square_().sum(1).double()
        cosines, sines = angles.cos(), angles.sin()
        found = angles.new_empty((len(points), objectives))
        for last in range(objectives - 1, 0, -1):  # the last objective has the first sine
            place = objectives - 1 - last
            found[:, last] = radius * sines[:, place]
            radius = radius * cosines[:, place]
        found[:, 0] = radius
        return found

    return losses


def dtlz2_front(objectives: int, most: int) -> npt.NDArray[np.float64]:
    """Return a grid of at most ``most`` points on the true front, shape (N, objectives)."""
    grid = lattice_within(objectives, most)
    front: npt.NDArray[np.float64] = grid / np.linalg.norm(grid, axis=1, keepdims=True)
    return front
