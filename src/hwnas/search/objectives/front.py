"""Pareto fronts: non-dominated points, hypervolume, and the selection of representative points.

All functions take losses: arrays of shape (points, objectives) in which smaller is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import moocore
import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError

__all__ = [
    "coverage",
    "front_by_front",
    "hypervolume",
    "hypervolume_history",
    "knee",
    "non_dominated",
    "pick_spread",
    "reference_point",
]

Losses = npt.NDArray[np.float64]


def non_dominated(losses: Losses) -> npt.NDArray[np.bool_]:
    """Return a mask of the points that no other point dominates; equal points are all kept."""
    if len(losses) == 0:
        return np.zeros(0, dtype=np.bool_)
    mask: npt.NDArray[np.bool_] = moocore.is_nondominated(losses, keep_weakly=True)
    return mask


def coverage(first: Losses, second: Losses) -> float:
    """Return the share of the second set that the first set covers, in 0..1.

    A point is covered if some point of the first set equals or dominates it (C metric, Zitzler and
    Thiele, IEEE TEC 1999). The metric is not symmetric; the values in both directions together say
    which set is ahead, and whether the fronts cross.

    Raises:
        ConfigError: The second set is empty.
    """
    if len(second) == 0:
        raise ConfigError("coverage of an empty set; expected at least one point")
    covered = [(first <= point).all(1).any() for point in second]
    return float(np.mean(covered))


def front_by_front(losses: Losses) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the indices of the non-dominated points, then of those among the rest, and so on."""
    left = np.arange(len(losses))
    while len(left):
        on_front = non_dominated(losses[left])
        yield left[on_front]
        left = left[~on_front]


def reference_point(losses: Losses) -> Losses:
    """Return a reference point: each objective's largest loss plus a tenth of its range."""
    worst, best = losses.max(0), losses.min(0)
    margin: Losses = worst + 0.1 * np.where(worst > best, worst - best, 1.0)
    return margin


def hypervolume(losses: Losses, reference: Losses) -> float:
    """Return the hypervolume between the front of some points and a reference point.

    Zitzler and Thiele, IEEE TEC 1999. Points that are not better than the reference point in every
    objective add nothing.
    """
    inside = losses[(losses < reference).all(1)]
    return float(moocore.hypervolume(inside, ref=reference)) if len(inside) else 0.0


def hypervolume_history(
    losses: Losses, reference: Losses, counted: Sequence[bool] | None = None
) -> list[float]:
    """Return the hypervolume of the first 1, 2, ... points.

    Args:
        losses: Losses of the points, in order.
        reference: Reference point, worse than the points that count.
        counted: For each point, whether it counts, e.g. whether it is feasible; all if None.
    """
    history: list[float] = []
    front = np.empty((0, losses.shape[1]))
    counts = [True] * len(losses) if counted is None else counted
    for point, counting in zip(losses, counts, strict=True):
        if not counting or (front <= point).all(1).any():
            history.append(history[-1] if history else 0.0)
            continue
        front = np.vstack([front, point])
        front = front[non_dominated(front)]
        history.append(hypervolume(front, reference))
    return history


def _unit(losses: Losses) -> Losses:
    low, high = losses.min(0), losses.max(0)
    scaled: Losses = (losses - low) / np.where(high > low, high - low, 1.0)
    return scaled


def knee(losses: Losses) -> int:
    """Return the index of the knee of a front.

    The knee is the point nearest to the ideal point, after scaling each objective to 0..1.
    """
    return int(np.linalg.norm(_unit(losses), axis=1).argmin())


def pick_spread(losses: Losses, count: int) -> list[int]:
    """Return the indices of a few points that represent the whole front.

    From each front: the best point of every objective, then the knee, then repeatedly the point
    farthest from those already picked. If the front has too few points, the next fronts follow.

    Returns:
        ``min(count, len(losses))`` distinct indices.
    """
    picked: list[int] = []
    for front in front_by_front(losses):
        if len(picked) >= count:
            break
        picked += _spread_on(losses, front.tolist(), count - len(picked))
    return picked


def _spread_on(losses: Losses, front: Sequence[int], count: int) -> list[int]:
    scaled = _unit(losses[list(front)])
    wanted = [int(i) for i in scaled.argmin(0)]
    wanted.append(knee(losses[list(front)]))
    chosen = list(dict.fromkeys(wanted))[:count]
    while len(chosen) < min(count, len(front)):
        distance = np.linalg.norm(scaled[:, None] - scaled[chosen][None], axis=2).min(1)
        distance[chosen] = -1.0
        chosen.append(int(distance.argmax()))
    return [front[i] for i in chosen]
