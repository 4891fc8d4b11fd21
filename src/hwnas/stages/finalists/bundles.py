"""Bundles of the finalists: their scores and costs, and those that have a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.atomic import recovered_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.search import Metric
from hwnas.search.objectives.front import knee
from hwnas.search.objectives.objective import LATENCY, Objective
from hwnas.stages.finalists.limits import best_kept, costs_of, of_bundle

__all__ = ["PICKS", "cost_of", "latency_of", "picks", "read_bundles", "score_of"]

PICKS = ("knee", "fastest", "most-accurate")


def read_bundles(folder: Path) -> dict[str, Bundle]:
    """Return the bundles of a run or of one of its targets, by candidate id."""
    if not recovered_folder(folder).is_dir():
        return {}
    bundles = [Bundle.load(p.parent) for p in sorted(folder.glob("*/bundle.json"))]
    return {bundle.folder.name: bundle for bundle in bundles}


def score_of(bundle: Bundle, metric: str, split: str) -> Mapping[str, Any]:
    """Return a metric of a bundle on a split, with its standard error and n."""
    rows: list[Mapping[str, Any]] = bundle.description["metrics"]
    return next(row for row in rows if row["name"] == metric and row.get("split") == split)


def latency_of(bundle: Bundle, objectives: Sequence[Objective]) -> float | None:
    """Return the first latency objective that a bundle was measured for, in ms, or None."""
    return cost_of(bundle, [each for each in objectives if each.metric == LATENCY])


def cost_of(bundle: Bundle, objectives: Sequence[Objective]) -> float | None:
    """Return the first objective on devices that a bundle was measured for, or None."""
    costs = costs_of(bundle)
    for objective in objectives:
        if objective.all_targets and costs.keys() >= set(objective.costs):
            on = objective.on_targets(costs)
            return objective.reduced({target: cost.value for target, cost in on.items()})
    return None


def picks(
    bundles: Mapping[str, Bundle], metric: Metric, objectives: Sequence[Objective]
) -> dict[str, str]:
    """Return the ids of the ``knee``, ``fastest`` and ``most-accurate`` bundles.

    Latency is the measured latency of the first latency objective, and accuracy the validation
    score after fine-tuning; the test score is not used to choose. Without a latency objective there
    is no ``fastest``, and the knee is that of the first other measured cost. A bundle that breaks a
    limit is never picked. One that misses a limit within noise is picked only if no bundle keeps
    all limits. So there may be no picks at all.
    """
    able = best_kept({name: of_bundle(bundle, objectives) for name, bundle in bundles.items()})
    bundles = {name: bundles[name] for name in able}
    if not bundles:
        return {}
    ids = list(bundles)
    sign = -1.0 if metric.direction == "maximize" else 1.0
    scores = [[sign * score_of(b, metric.name, "validation")["value"]] for b in bundles.values()]
    named = {"most-accurate": ids[int(np.argmin(scores))]}
    timed = [each for each in objectives if each.metric == LATENCY]
    measured = [cost_of(bundle, timed or objectives) for bundle in bundles.values()]
    costs = [[cost] for cost in measured if cost is not None]
    if len(costs) == len(bundles):
        if timed:
            named["fastest"] = ids[int(np.argmin(costs))]
        named["knee"] = ids[knee(np.hstack([scores, np.log(costs)]))]
    return named
