"""Evaluation at rising cost: many candidates cheaply, the best of them thoroughly.

Asynchronous successive halving (Li et al., MLSys 2020, algorithm 2), here with batches that are
compared together: at each rung one in ``keep`` of all that ever reached it goes on. With one
objective Optuna's `SuccessiveHalvingPruner` decides; with several, for which Optuna has no pruner,
the non-dominated rank does, and within a rank the crowding distance (Deb et al., IEEE TEC 2002).
What is a cost counts in full at every rung, since it is known before anything is evaluated.

Large networks are further from what they will reach at an early rung than small ones, which would
win every comparison there. ``compare = "similar_cost"`` compares a candidate only with those of its
batch that cost about as much, so that all sizes stay.
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

from hwnas.errors import ConfigError
from hwnas.search.evolution.nsga2 import crowding
from hwnas.search.objective import Objective, losses

__all__ = ["RUNGS", "RungCount", "Rungs", "best", "best_of_similar", "rung_counts"]

RUNGS = "rungs"
"""The attribute of a trial that says how it did at each rung, and whether it went on."""


@dataclass(frozen=True)
class Rungs:
    """How candidates are evaluated at rising cost.

    Attributes:
        rungs: Share of the full cost of an evaluation at each rung, in (0, 1], rising to 1. What it
            is a share of is the evaluator's matter: images of the supernet's, epochs of training.
        keep: One in so many goes on from a rung; at least 2.
        compare: ``"all"`` compares all that ever reached a rung. ``"similar_cost"`` orders a batch
            by its first cost, the second objective, and of every ``keep`` that follow each other
            the best by the first objective goes on.
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
        """Decides for one objective."""
        if len(self.rungs) == 1:
            return NopPruner()
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=self.keep)

    def cost(self, count: int) -> float:
        """Return what a batch of so many candidates costs, in evaluations at the full cost."""
        total, before, left = 0.0, 0.0, count
        for share in self.rungs:
            total += left * (share - before)
            before, left = share, self.left(left)
        return total

    def left(self, count: int) -> int:
        """Return how many of a batch go on from a rung."""
        return -(-count // self.keep) if self.compare == "similar_cost" else count // self.keep or 1

    def promote(
        self,
        rung: int,
        trials: Sequence[Trial],
        values: Sequence[Mapping[str, float]],
        earlier: Sequence[FrozenTrial],
        objectives: Sequence[Objective],
    ) -> list[bool]:
        """Which of a batch go on to the next rung; each trial gets a record of it.

        Args:
            rung: At which they were evaluated, from 0; not the last.
            trials: The batch.
            values: What was found of each there, by objective label.
            earlier: Trials of the study, of which those count that came to this rung.
            objectives: What is better.
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
    """The best rows of a table of losses, of shape (points, objectives): by rank, then crowding."""
    ranks = moocore.pareto_rank(table)
    distance = crowding(torch.from_numpy(table), torch.from_numpy(ranks)).numpy()
    order = np.lexsort((-distance, ranks))
    return {int(row) for row in order[:count]}


def best_of_similar(table: npt.NDArray[np.float64], size: int) -> set[int]:
    """Return the best row of each group of similar cost.

    Args:
        table: Losses, of shape (points, objectives); the second column is the cost.
        size: Rows of a group; the group of the highest costs may have fewer.
    """
    order = np.lexsort((table[:, 0], table[:, 1]))
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    return {int(group[np.argmin(table[group, 0])]) for group in groups}


@dataclass(frozen=True)
class RungCount:
    """What happened at one rung.

    Attributes:
        share: Of the full cost.
        evaluated: How many candidates came to it.
        promoted: How many of them went on.
    """

    share: float
    evaluated: int
    promoted: int


def rung_counts(trials: Sequence[FrozenTrial]) -> tuple[RungCount, ...]:
    """The rungs of a study but for the last, of which all that came to it are complete."""
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
