"""Successive halving: many candidates are evaluated cheaply, and only the best of them fully.

Asynchronous successive halving (ASHA; Li et al., "A System for Massively Parallel Hyperparameter
Tuning", MLSys 2020, algorithm 2), here with batches that are compared together: at each rung, one
in ``keep`` of all candidates that ever reached the rung is promoted. With one objective, Optuna's
`SuccessiveHalvingPruner` decides. With several objectives, for which Optuna has no pruner,
candidates are ordered by non-dominated rank, and within a rank by crowding distance (Deb et al.,
IEEE TEC 2002). Costs of the network (latency, size) have their final value at every rung, since
they are known before evaluation.

At an early rung, large networks are further from their final score than small ones, so small
networks would win every comparison. ``compare = "similar_cost"`` compares a candidate only with
those of its batch that cost about as much, so that networks of all sizes stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import moocore
import numpy as np
import numpy.typing as npt
import torch
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial, Trial

from hwnas.config_class import config_class
from hwnas.errors import ConfigError
from hwnas.search.evolution.algorithms.nsga2 import crowding
from hwnas.search.objectives.objective import Objective, losses

__all__ = ["RUNGS", "RungCount", "Rungs", "best", "best_of_similar", "rung_counts"]

RUNGS = "rungs"
"""User attribute of a trial: for each rung, the values and whether the trial was promoted."""


@config_class
@dataclass(frozen=True)
class Rungs:
    """Settings of successive halving.

    Attributes:
        rungs: Share of the full cost of an evaluation at each rung, in (0, 1], rising to 1. The
            evaluator defines the cost: images for a supernet's weights, epochs for training.
        keep: Reduction factor: one in ``keep`` candidates is promoted from a rung; at least 2.
        compare: ``"all"`` compares all candidates that ever reached a rung. ``"similar_cost"``
            sorts a batch by its first cost, which is the second objective, and promotes the best by
            the first objective of every ``keep`` consecutive candidates.
    """

    rungs: tuple[float, ...] = (1.0,)
    keep: int = 3
    compare: Literal["all", "similar_cost"] = "all"

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.rungs, self.rungs[1:], strict=False))
        if not self.rungs or self.rungs[0] <= 0 or not rising or self.rungs[-1] != 1:
            raise ConfigError(
                f"search.fidelity.rungs is {list(self.rungs)}; expected shares above 0 that rise "
                "to 1, such as [0.1, 0.3, 1.0]"
            )
        if self.keep < 2:
            raise ConfigError(f"search.fidelity.keep is {self.keep}; expected at least 2")

    @property
    def pruner(self) -> BasePruner:
        """Optuna pruner that decides on promotion if there is one objective."""
        if len(self.rungs) == 1:
            return NopPruner()
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=self.keep)

    def cost(self, count: int) -> float:
        """Return the cost of a batch of ``count`` candidates, in evaluations at the full cost."""
        total, before, left = 0.0, 0.0, count
        for share in self.rungs:
            total += left * (share - before)
            before, left = share, self.left(left)
        return total

    def left(self, count: int) -> int:
        """Return the number of candidates promoted from a rung, out of ``count``."""
        return -(-count // self.keep) if self.compare == "similar_cost" else count // self.keep or 1

    def promote(
        self,
        rung: int,
        trials: Sequence[Trial],
        values: Sequence[Mapping[str, float]],
        earlier: Sequence[FrozenTrial],
        objectives: Sequence[Objective],
    ) -> list[bool]:
        """Decide which trials of a batch are promoted to the next rung, and record it in each.

        Args:
            rung: Rung at which the batch was evaluated, from 0; not the last one.
            trials: Trials of the batch.
            values: Values of each trial at this rung, by objective label.
            earlier: Trials of the study; those that reached this rung are compared, too.
            objectives: Objectives of the search.

        Returns:
            For each trial, whether it is promoted.
        """
        if self.compare == "similar_cost" and len(objectives) > 1:
            chosen = best_of_similar(losses(objectives, values), self.keep)
            going = [i in chosen for i in range(len(trials))]
        elif len(objectives) == 1:
            label = objectives[0].label
            for trial, found in zip(trials, values, strict=True):
                trial.report(found[label], step=self.keep**rung)
            going = [not trial.should_prune() for trial in trials]
        else:
            rows = [record["values"] for record in _records(earlier, rung)]
            table = losses(objectives, [*rows, *values])
            chosen = best(table, self.left(len(table)))
            going = [len(rows) + i in chosen for i in range(len(trials))]
        for trial, found, goes in zip(trials, values, going, strict=True):
            record = {
                "share": self.rungs[rung],
                "promoted": goes,
                "values": {o.label: found[o.label] for o in objectives},
            }
            trial.set_user_attr(RUNGS, [*trial.user_attrs.get(RUNGS, []), record])
        return going


def best(table: npt.NDArray[np.float64], count: int) -> set[int]:
    """Return the best rows of a table of losses, by non-dominated rank, then crowding distance.

    The table is of shape (points, objectives).
    """
    ranks = moocore.pareto_rank(table)
    distance = crowding(torch.from_numpy(table), torch.from_numpy(ranks)).numpy()
    order = np.lexsort((-distance, ranks))
    return {int(row) for row in order[:count]}


def best_of_similar(table: npt.NDArray[np.float64], size: int) -> set[int]:
    """Return the best row of each group of similar cost.

    Args:
        table: Losses, of shape (points, objectives); the second column is the cost.
        size: Number of rows in a group; the group of the highest costs may have fewer.
    """
    order = np.lexsort((table[:, 0], table[:, 1]))
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    return {int(group[np.argmin(table[group, 0])]) for group in groups}


@dataclass(frozen=True)
class RungCount:
    """Number of candidates evaluated at one rung, and promoted from it.

    Attributes:
        share: Share of the full cost.
        evaluated: Number of candidates that reached the rung.
        promoted: Number of candidates promoted to the next rung.
    """

    share: float
    evaluated: int
    promoted: int


def rung_counts(trials: Sequence[FrozenTrial]) -> tuple[RungCount, ...]:
    """Return the counts of all rungs of a study except the last.

    All candidates that reached the last rung are complete trials.
    """
    deepest = max((len(trial.user_attrs.get(RUNGS, ())) for trial in trials), default=0)
    counts = []
    for rung in range(deepest):
        records = _records(trials, rung)
        promoted = sum(record["promoted"] for record in records)
        counts.append(RungCount(records[0]["share"], len(records), promoted))
    return tuple(counts)


def _records(trials: Sequence[FrozenTrial], rung: int) -> list[dict[str, Any]]:
    found = (trial.user_attrs.get(RUNGS, ()) for trial in trials)
    return [records[rung] for records in found if len(records) > rung]
