"""Normalised hypervolume: share of the hypervolume of a table's true front, in one of two boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hwnas.search.objectives.front import Losses, hypervolume, non_dominated
from hwnas.search.tables.table import Column, ObjectiveTable

__all__ = ["HypervolumeMetric", "tight_box", "wide_box"]

_POINTS = 10.0  # size of the tight box: percentage points of error above the best
_BEYOND = 0.1  # relative margin of the boxes

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HypervolumeMetric:
    """Normalised hypervolume metric within a box of losses below a reference point.

    Attributes:
        losses: Losses of all N networks, (N, m); infinite for networks that do not count.
        reference: Reference point, the worst corner of the box, (m,).
        whole: Hypervolume of the true front in the box.
    """

    losses: Losses
    reference: Losses
    whole: float

    @classmethod
    def of(cls, losses: Losses, reference: Losses) -> HypervolumeMetric:
        """Return the metric for the box below a reference point."""
        return cls(losses, reference, hypervolume(losses, reference))

    def share(self, rows: Rows) -> float:
        """Return the hypervolume of some rows' networks, divided by the true front's: 0 to 1."""
        return hypervolume(self.losses[rows], self.reference) / self.whole if self.whole else 0.0


def wide_box(table: ObjectiveTable) -> HypervolumeMetric:
    """Return the metric in the wide box, on linear scales.

    The reference point is the worst loss of the true front in each objective, plus a tenth of the
    front's range.
    """
    losses = table.losses
    front = losses[non_dominated(losses)]
    margin = _BEYOND * np.where(np.ptp(front, axis=0) > 0, np.ptp(front, axis=0), 1.0)
    return HypervolumeMetric.of(losses, front.max(0) + margin)


def tight_box(table: ObjectiveTable) -> HypervolumeMetric:
    """Return the metric in the tight box, the region of useful networks near the most accurate one.

    The box reaches to ten percentage points of error above the best, and to the cost of the true
    front's most accurate network plus a tenth. Costs are on a logarithmic scale. Networks without a
    path from input to output do not count. Maximised objectives are scores, the first of which is
    the accuracy; minimised objectives are costs. If no objective is maximised, the first one takes
    the place of the accuracy.
    """
    scores = [j for j, c in enumerate(table.columns) if c.direction == "maximize"] or [0]
    scaled = [_scaled(c, j in scores) for j, c in enumerate(table.columns)]
    losses = np.column_stack(scaled)
    losses[~table.connected] = np.inf
    alive = np.flatnonzero(np.isfinite(losses).all(1))
    front = alive[non_dominated(losses[alive])]
    best = losses[front[_order(losses[front], scores)]]
    reference = np.empty(len(table.columns))
    for j, column in enumerate(table.columns):
        if j in scores:
            reference[j] = losses[front, j].min() + _points(column)
        elif _is_positive(column):
            reference[j] = best[j] + np.log1p(_BEYOND)
        else:
            reference[j] = best[j] + _BEYOND * abs(best[j])
    return HypervolumeMetric.of(losses, reference)


def _order(losses: Losses, scores: Sequence[int]) -> int:
    """Return the index of the most accurate point; ties are decided by the other losses."""
    others = [j for j in range(losses.shape[1]) if j != scores[0]]
    return int(np.lexsort([*losses[:, others].T, losses[:, scores[0]]])[0])


def _is_positive(column: Column) -> bool:
    return bool((column.values > 0).all())


def _scaled(column: Column, score: bool) -> Losses:
    if not score and _is_positive(column):
        return np.log(column.values)
    return np.array(column.losses)


def _points(column: Column) -> float:
    """Return ten percentage points in the column's unit: 10 for percentages, 0.1 for fractions."""
    return _POINTS if np.abs(column.values).max() > 1 else _POINTS / 100
