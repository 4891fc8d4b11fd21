"""Bundles of the finalists: their scores and costs, and those that have a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.atomic import recovered_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.targets.target import Target
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.search import Metric
from hwnas.search.objectives.front import knee
from hwnas.search.objectives.objective import LATENCY, Objective
from hwnas.stages.finalists.limits import best_kept, costs_of, of_bundle

__all__ = [
    "chosen_target",
    "delivered_bytes",
    "device_objectives",
    "is_pick",
    "latency_of",
    "main_cost",
    "measured_cost",
    "picks",
    "read_bundles",
    "score_of",
]


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
    return main_cost(bundle, [each for each in objectives if each.metric == LATENCY])


def device_objectives(objectives: Sequence[Objective]) -> list[Objective]:
    """Return the objectives on devices; those of the usual metric, latency, are the first."""
    found = [each for each in objectives if each.metric in DEVICE_METRICS]
    return sorted(found, key=lambda each: not DEVICE_METRICS.plugin(each.metric).usual)


def main_cost(bundle: Bundle, objectives: Sequence[Objective]) -> float | None:
    """Return the first of `device_objectives` that a bundle was measured for, or None."""
    measured = (measured_cost(bundle, each) for each in device_objectives(objectives))
    return next((cost for cost in measured if cost is not None), None)


def measured_cost(bundle: Bundle, objective: Objective) -> float | None:
    """Return the measured value of an objective on devices, or None if there is none."""
    on = objective.on_targets(costs_of(bundle))
    if not on:
        return None
    return objective.reduced({target: cost.value for target, cost in on.items()})


def chosen_target(bundle: Bundle, objectives: Sequence[Objective]) -> str | None:
    """Return the target of least measured cost; None if no objective chooses among targets."""
    for objective in objectives:
        on = objective.on_targets(costs_of(bundle)) if objective.reduce == "min" else {}
        if on:
            return min(on, key=lambda target: on[target].value)
    return None


def delivered_bytes(bundle: Bundle, objectives: Sequence[Objective]) -> int | None:
    """Return the size of the file for the network's target; None if the file is missing."""
    named = [target for objective in objectives for target in objective.all_targets]
    target = chosen_target(bundle, objectives) or next(iter(named), None)
    return bundle.bytes_in("fp32" if target is None else Target.parse(target).format)


def is_pick(name: str) -> bool:
    """Return whether `picks` can give this name."""
    return name in {"knee", "most-accurate", *(each.pick for each in DEVICE_METRICS.values())}


def picks(
    bundles: Mapping[str, Bundle], metric: Metric, objectives: Sequence[Objective]
) -> dict[str, str]:
    """Return the ids of the bundles that have a name.

    They are ``most-accurate``, for each metric on devices the lowest, such as ``fastest``, and the
    ``knee`` of accuracy and the first of these costs. Costs are as measured, and accuracy is the
    validation score after fine-tuning; the test score is not used to choose. If an objective was
    not measured for all bundles, the next of `device_objectives` takes its place. A bundle that
    breaks a limit is never picked. One that violates a limit within noise is picked only if no
    bundle meets all limits. So there may be no picks at all.
    """
    able = best_kept({name: of_bundle(bundle, objectives) for name, bundle in bundles.items()})
    bundles = {name: bundles[name] for name in able}
    if not bundles:
        return {}
    ids = list(bundles)
    sign = -1.0 if metric.direction == "maximize" else 1.0
    scores = [[sign * score_of(b, metric.name, "validation")["value"]] for b in bundles.values()]
    named = {"most-accurate": ids[int(np.argmin(scores))]}
    for objective in device_objectives(objectives):
        measured = [measured_cost(bundle, objective) for bundle in bundles.values()]
        costs = [[cost] for cost in measured if cost is not None]
        if len(costs) == len(bundles):
            named.setdefault(DEVICE_METRICS[objective.metric].pick, ids[int(np.argmin(costs))])
            named.setdefault("knee", ids[knee(np.hstack([scores, np.log(costs)]))])
    return named
