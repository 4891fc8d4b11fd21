"""How much of a table's true front was found: shares of hypervolume in two boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hwnas.search.front import Losses, hypervolume, non_dominated
from hwnas.search.tables.table import Column, ObjectiveTable

__all__ = ["Yardstick", "tight_box", "wide_box"]

_POINTS = 10.0  # of error above the best that count in the tight box
_BEYOND = 0.1

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Yardstick:
    """A box of losses, from the ideal point to a reference, and how much of it can be had.

    Attributes:
        losses: Of all N networks, (N, m); what does not count is infinite.
        reference: The box's worst corner, (m,).
        whole: Hypervolume of the true front in the box.
    """

    losses: Losses
    reference: Losses
    whole: float

    @classmethod
    def of(cls, losses: Losses, reference: Losses) -> Yardstick:
        """The box below a reference."""
        return cls(losses, reference, hypervolume(losses, reference))

    def share(self, rows: Rows) -> float:
        """Hypervolume of the networks of some rows, over that of the true front: 0 to 1."""
        return hypervolume(self.losses[rows], self.reference) / self.whole if self.whole else 0.0


def wide_box(table: ObjectiveTable) -> Yardstick:
    """Linear, up to the worst of the true front plus a tenth of the front's range."""
    losses = table.losses
    front = losses[non_dominated(losses)]
    margin = _BEYOND * np.where(np.ptp(front, axis=0) > 0, np.ptp(front, axis=0), 1.0)
    return Yardstick.of(losses, front.max(0) + margin)


def tight_box(table: ObjectiveTable) -> Yardstick:
    """Where networks are useful: near the most accurate one, costs in logarithms.

    It reaches to errors ten points above the best and to the cost of the true front's most accurate
    network plus a tenth. Networks without a path from input to output do not count. What is
    maximised is a score, the first one (or else the first objective) the accuracy; what is
    minimised is a cost.
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
    return Yardstick.of(losses, reference)


def _order(losses: Losses, scores: Sequence[int]) -> int:
    """The most accurate point; of equals the one with the smallest losses otherwise."""
    others = [j for j in range(losses.shape[1]) if j != scores[0]]
    return int(np.lexsort([*losses[:, others].T, losses[:, scores[0]]])[0])


def _is_positive(column: Column) -> bool:
    return bool((column.values > 0).all())


def _scaled(column: Column, score: bool) -> Losses:
    if not score and _is_positive(column):
        return np.log(column.values)
    return np.array(column.losses)


def _points(column: Column) -> float:
    """Ten points of a percentage; of a fraction a tenth."""
    return _POINTS if np.abs(column.values).max() > 1 else _POINTS / 100
