"""Expected hypervolume improvement of candidates over a Pareto front.

All objectives are losses: smaller is better. Shapes: n points of a front, m objectives, K boxes, N
candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hwnas.search.objectives.front import Losses, non_dominated

__all__ = ["BoxDecomposition", "expected_improvement"]

_ROOT_TWO_PI = float(np.sqrt(2 * np.pi))
_CHUNK = 1 << 22  # array elements processed at a time, to bound memory
_MOST = {1: 1, 2: 2000, 3: 200, 4: 40}  # most front points used, by number of objectives
_MOST_OF_MANY = 20


@dataclass(frozen=True)
class BoxDecomposition:
    """Box decomposition of the region that a front dominates, below a reference point.

    The boxes do not overlap. Lacour, Klamroth and Fonseca, "A box decomposition algorithm to
    compute the hypervolume indicator", Computers and Operations Research 2017, with the local upper
    bounds of Klamroth, Lacour and Vanderpooten, EJOR 2015. A front with too many points is first
    thinned to evenly spaced ones; the limit falls with the number of objectives.

    Attributes:
        reference: Reference point, of shape (m,).
        lower: Lower corners of the boxes, (K, m).
        upper: Upper corners of the boxes, (K, m).
    """

    reference: Losses
    lower: Losses
    upper: Losses

    @classmethod
    def by(cls, points: Losses, reference: Losses) -> BoxDecomposition:
        """Return the decomposition for points (n, m) and a reference point (m,)."""
        inside = points[(points < reference).all(1)]
        front = np.unique(inside[non_dominated(inside)], axis=0)
        most = _MOST.get(len(reference), _MOST_OF_MANY)
        if len(front) > most:
            front = front[np.linspace(0, len(front) - 1, most).astype(np.int64)]
        return cls(reference, *_boxes(front, reference))

    @property
    def volume(self) -> float:
        """Hypervolume of the dominated region."""
        return float((self.upper - self.lower).prod(1).sum())

    def improvement(self, means: Losses, deviations: Losses) -> Losses:
        """Return the expected hypervolume improvement of each candidate, of shape (N,), at least 0.

        The objectives of a candidate are assumed to be independent and normal. A candidate adds the
        box between itself and the reference point, less the part of that box that the front already
        dominates. Both volumes are products over objectives, and so are their expectations:
        Emmerich, Deutz and Klinkenberg, "Hypervolume-based expected improvement", CEC 2011.

        Args:
            means: Predicted means, of shape (N, m).
            deviations: Predicted standard deviations, of the same shape, at least 0.
        """
        size = max(1, _CHUNK // max(self.lower.size, 1))
        found = [
            self._improvement(means[i : i + size], deviations[i : i + size])
            for i in range(0, len(means), size)
        ]
        return np.concatenate(found) if found else np.zeros(0)

    def _improvement(self, means: Losses, deviations: Losses) -> Losses:
        alone = expected_improvement(self.reference, means, deviations).prod(1)
        if not len(self.lower):
            return np.asarray(alone)
        shared = np.ones((len(means), len(self.lower)))
        for j in range(means.shape[1]):
            levels, index = np.unique([self.lower[:, j], self.upper[:, j]], return_inverse=True)
            below = expected_improvement(levels, means[:, j, None], deviations[:, j, None])
            lower, upper = index.reshape(2, -1)
            shared *= below[:, upper] - below[:, lower]
        gain: Losses = np.maximum(alone - shared.sum(1), 0.0)
        return gain


def expected_improvement(level: Losses, mean: Losses, deviation: Losses) -> Losses:
    """Return E[max(level - Y, 0)] for a normal Y; 0 for a level of minus infinity.

    All shapes broadcast.
    """
    finite = np.where(np.isfinite(level), level, 0.0)
    gap = finite - mean
    safe = np.maximum(deviation, 1e-12)
    scaled = gap / safe
    found = gap * ndtr(scaled) + safe * np.exp(-0.5 * scaled * scaled) / _ROOT_TWO_PI
    result: Losses = np.where(np.isfinite(level), np.maximum(found, 0.0), 0.0)
    return result


def _boxes(front: Losses, reference: Losses) -> tuple[Losses, Losses]:
    """Return lower and upper corners, (K, m) each, of the boxes that a sorted front dominates."""
    n, m = front.shape
    if m == 1 or n == 0:
        return front[:1], np.broadcast_to(reference, front[:1].shape)
    if m == 2:  # staircase: the box of each point ends where the box of the point before begins
        return front, np.column_stack([np.full(n, reference[0]), [reference[1], *front[:-1, 1]]])
    # The decomposition needs points that share no coordinate, so it works on ranks. A box between
    # two ranks of the same value has no volume.
    order = np.argsort(front, axis=0, kind="stable")
    ranks = np.empty((n, m))
    np.put_along_axis(ranks, order, np.arange(n, dtype=np.float64)[:, None], axis=0)
    lower, upper = _boxes_apart(ranks)
    values = np.vstack([np.take_along_axis(front, order, axis=0), reference])
    columns = np.arange(m)
    corners = (values[corner.astype(np.int64), columns] for corner in (lower, upper))
    lower, upper = corners
    kept = (lower < upper).all(1)
    return lower[kept], upper[kept]


def _boxes_apart(ranks: Losses) -> tuple[Losses, Losses]:
    """Return the boxes of n points whose coordinates are ranks 0 to n - 1, with reference n."""
    n, m = ranks.shape
    # Local upper bounds u and, for each objective, the point z that defines u's coordinate there.
    bounds = np.full((1, m), float(n))
    givers = np.full((1, m, m), -np.inf)
    givers[0, range(m), range(m)] = n
    for point in ranks:
        bounds, givers = _cut(bounds, givers, point)
    lower = np.column_stack(
        [givers[:, 0, 0], *(givers[:, :j, j].max(1) for j in range(1, m))],
    )
    upper = np.column_stack([np.full(len(bounds), float(n)), bounds[:, 1:]])
    kept = (lower < upper).all(1) & np.isfinite(lower).all(1)
    return lower[kept], upper[kept]


def _cut(bounds: Losses, givers: Losses, point: Losses) -> tuple[Losses, Losses]:
    """Return the local upper bounds and their defining points after adding a point."""
    m = len(point)
    above = (bounds > point).all(1)
    if not above.any():
        return bounds, givers
    cut_bounds, cut_givers = [bounds[~above]], [givers[~above]]
    for j in range(m):
        others = [i for i in range(m) if i != j]
        largest = givers[above][:, others, j].max(1)
        chosen = point[j] > largest
        bound, giver = bounds[above][chosen].copy(), givers[above][chosen].copy()
        bound[:, j] = point[j]
        giver[:, j] = point
        cut_bounds.append(bound)
        cut_givers.append(giver)
    return np.concatenate(cut_bounds), np.concatenate(cut_givers)
