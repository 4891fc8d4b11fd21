"""Costs of candidates that are predicted or counted before evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors import CostSource, Estimate
from hwnas.predictors.expected_cost import expected_costs
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.search.engine.failure import Failure, Outcome
from hwnas.search.evaluation.scoring import Evaluation
from hwnas.search.objectives.objective import COUNTED, Objective
from hwnas.search_spaces import Candidate, SearchSpace, Workload
from hwnas.search_spaces.space.precision import own_format

__all__ = ["CandidateCosts", "check_costs", "predict_costs"]


@dataclass(frozen=True)
class CandidateCosts:
    """Costs of a candidate that are known before evaluation.

    Attributes:
        values: Cost by objective label.
        estimates: Estimates of the costs that a cost source predicted, by objective label; if an
            objective reduces several targets, also by ``metric@target``, as far as the candidate
            ships in the number format of the target.
        counted: Exact counts of the workload, all of `COUNTED`.
    """

    values: Mapping[str, float]
    estimates: Mapping[str, Estimate]
    counted: Mapping[str, int]


def predict_costs(
    space: SearchSpace,
    candidates: Sequence[Candidate],
    objectives: Sequence[Objective],
    costs: Mapping[str, CostSource],
) -> list[CandidateCosts]:
    """Return the costs of candidates in each objective that is a cost.

    There is an estimate for each objective and, if it reduces several targets, for each target. If
    a candidate names its number format, only targets in that format count.

    Args:
        space: Space of the candidates.
        candidates: Candidates whose costs are wanted.
        objectives: Objectives of the search.
        costs: Cost source of each metric on a target, by its label (`label_on`).

    Raises:
        ConfigError: An objective names a metric on a target without a cost source.
    """
    traced: dict[int, list[Workload]] = {}

    def workloads(batch: int) -> list[Workload]:
        if batch not in traced:
            traced[batch] = [space.network.workload(c.network, batch) for c in candidates]
        return traced[batch]

    predicted = [objective for objective in objectives if objective.all_targets]
    found: dict[str, list[Estimate]] = {}
    formats: dict[str, str] = {}
    for objective in predicted:
        for label, name in zip(objective.costs, objective.all_targets, strict=True):
            if label not in costs:
                raise ConfigError(f"no cost source for {objective.label}; pass costs[{label!r}]")
            if label not in found:
                target = Target.parse(name)
                formats[label] = target.format
                batch = DEVICE_METRICS[objective.metric].batch(target)
                targets = [target] * len(candidates)
                found[label] = expected_costs(costs[label], workloads(batch), targets)
    estimates: list[dict[str, Estimate]] = []
    for i, candidate in enumerate(candidates):
        own = own_format(candidate)
        row = {
            label: column[i]
            for label, column in found.items()
            if own is None or formats[label] == own
        }
        estimates.append(row | {o.label: o.estimate(o.on_targets(row)) for o in predicted})
    counted = [{name: count(w) for name, count in COUNTED.items()} for w in workloads(1)]
    return [
        CandidateCosts({**counts, **{label: e.mean for label, e in row.items()}}, row, counts)
        for row, counts in zip(estimates, counted, strict=True)
    ]


def check_costs(
    candidate: Candidate,
    objectives: Sequence[Objective],
    costs: CandidateCosts,
    evaluation: Evaluation,
) -> Outcome:
    """Return the evaluation, or a failure if a cost of the candidate is not finite."""
    for label in (o.label for o in objectives if o.label in costs.values):
        if not math.isfinite(costs.values[label]):
            value = costs.values[label]
            return Failure(
                "bad result",
                f"the predicted {label} of {candidate.id} is {value}; expected a finite number",
            )
    return evaluation
