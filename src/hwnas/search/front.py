"""Pareto fronts: which points are on them, how good they are, and which to pick.

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
    """Which points no other point dominates; of equal points all are kept."""
    if len(losses) == 0:
        return np.zeros(0, dtype=np.bool_)
    mask: npt.NDArray[np.bool_] = moocore.is_nondominated(losses, keep_weakly=True)
    return mask


def coverage(first: Losses, second: Losses) -> float:
    """Share of the second set that some point of the first equals or dominates, in 0..1.

    The measure C of Zitzler and Thiele, IEEE TEC 1999. It is not symmetric: both ways together say
    which set is ahead, and whether they cross.

    Raises:
        ConfigError: The second set is empty.
    """
    if len(second) == 0:
        raise ConfigError("coverage of an empty set; expected at least one point")
    covered = [(first <= point).all(1).any() for point in second]
    return float(np.mean(covered))


def front_by_front(losses: Losses) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of the points that none dominates, then of those that only these do, and so on."""
    left = np.arange(len(losses))
    while len(left):
        on_front = non_dominated(losses[left])
        yield left[on_front]
        left = left[~on_front]


def reference_point(losses: Losses) -> Losses:
    """A point worse than all: each objective's largest loss plus a tenth of its range."""
    worst, best = losses.max(0), losses.min(0)
    margin: Losses = worst + 0.1 * np.where(worst > best, worst - best, 1.0)
    return margin


def hypervolume(losses: Losses, reference: Losses) -> float:
    """Volume between the front of these points and a reference point.

    Zitzler and Thiele, IEEE TEC 1999. Points that are not better than the reference in every
    objective add nothing.
    """
    inside = losses[(losses < reference).all(1)]
    return float(moocore.hypervolume(inside, ref=reference)) if len(inside) else 0.0


def hypervolume_history(
    losses: Losses, reference: Losses, counted: Sequence[bool] | None = None
) -> list[float]:
    """Hypervolume of the first 1, 2, ... points.

    Args:
        losses: Of the points.
        reference: A point that is worse than those that count.
        counted: Which of the points count, such as those that keep all limits; all if None.
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
    """The point nearest to the ideal, after scaling each objective of the front to 0..1."""
    return int(np.linalg.norm(_unit(losses), axis=1).argmin())


def pick_spread(losses: Losses, count: int) -> list[int]:
    """A few points that show the whole front, filled from the next fronts where it is too small.

    From each front: the best of every objective, then the knee, then always the point farthest from
    those that were picked.

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
