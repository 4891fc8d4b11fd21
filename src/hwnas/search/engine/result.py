"""Result of a search: its trials, read from the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from hwnas.predictors import Estimate
from hwnas.search.engine.failure import Failure
from hwnas.search.engine.rungs import RungCount
from hwnas.search.objectives.front import non_dominated
from hwnas.search.objectives.objective import Objective, losses, violations
from hwnas.search.study.search_study import SearchStudy
from hwnas.search_spaces import Architecture, Candidate

__all__ = [
    "FailedTrial",
    "Scored",
    "SearchResult",
    "as_limits_see",
    "candidate_of",
    "described",
    "evaluated_candidates",
    "failed_trials",
    "nearest_miss",
    "scored",
    "scored_trials",
]


@dataclass(frozen=True)
class Scored:
    """Finished trial of a search.

    Attributes:
        number: Number of the trial.
        candidate: Candidate that was evaluated.
        values: Values by objective label; also all metrics and counted costs, by name.
        standard_errors: Standard errors of the task's metrics, by name.
        estimates: Estimates of the predicted costs, by objective label and ``metric@target``.
        counted: Exact counts of the workload.
        feasible: Whether all limits are met, according to the values and estimates of the search.
        images: Number of images that the candidate was scored on; None if not recorded.
    """

    number: int
    candidate: Candidate
    values: Mapping[str, float]
    standard_errors: Mapping[str, float]
    estimates: Mapping[str, Estimate]
    counted: Mapping[str, int]
    feasible: bool
    images: int | None = None


@dataclass(frozen=True)
class FailedTrial:
    """Trial whose evaluation failed.

    Attributes:
        number: Number of the trial.
        candidate: Candidate that was to be evaluated.
        failure: Reason of the failure.
    """

    number: int
    candidate: Candidate
    failure: Failure


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        objectives: Objectives of the search.
        trials: Trials of all fully evaluated candidates, by number.
        evaluations_made: Number of evaluations made by this call.
        failed: Trials whose evaluation failed, by number.
        rungs: For each rung below the full cost, the number of candidates evaluated and promoted.
    """

    objectives: tuple[Objective, ...]
    trials: tuple[Scored, ...]
    evaluations_made: int = 0
    failed: tuple[FailedTrial, ...] = ()
    rungs: tuple[RungCount, ...] = ()

    @property
    def tried(self) -> int:
        """Number of candidates evaluated, fully or at a share of the cost."""
        return len(self.trials) + sum(rung.evaluated - rung.promoted for rung in self.rungs)

    @property
    def feasible(self) -> tuple[Scored, ...]:
        """Trials that meet every limit."""
        return tuple(trial for trial in self.trials if trial.feasible)

    @property
    def front(self) -> tuple[Scored, ...]:
        """Pareto front: the feasible non-dominated trials, best first in the first objective."""
        feasible = self.feasible
        table = losses(self.objectives, [trial.values for trial in feasible])
        front = [t for t, keep in zip(feasible, non_dominated(table), strict=True) if keep]
        first = self.objectives[0]
        return tuple(sorted(front, key=lambda t: first.loss(t.values[first.label])))


def scored_trials(study: SearchStudy, objectives: Sequence[Objective]) -> tuple[Scored, ...]:
    """Return the trials of a study that were evaluated."""
    return tuple(scored(trial, objectives) for trial in study.complete)


def evaluated_candidates(study: SearchStudy) -> tuple[Candidate, ...]:
    """Return the candidates of a study that were evaluated, fully or at a share of the cost."""
    return tuple(candidate_of(t.user_attrs) for t in (*study.complete, *study.stopped))


def failed_trials(study: SearchStudy) -> tuple[FailedTrial, ...]:
    """Return the trials of a study whose evaluation failed."""
    return tuple(
        FailedTrial(
            trial.number,
            candidate_of(trial.user_attrs),
            Failure.from_json(trial.user_attrs["failure"]),
        )
        for trial in study.failed
        if "failure" in trial.user_attrs
    )


def described(candidate: Candidate) -> dict[str, Any]:
    """Return the trial attributes that describe a candidate."""
    others = {role: architecture.to_json() for role, architecture in candidate.others.items()}
    return {"architecture": candidate.network.to_json(), **({"roles": others} if others else {})}


def candidate_of(about: Mapping[str, Any]) -> Candidate:
    """Return the candidate from trial attributes; the inverse of `described`."""
    others = {role: Architecture.from_json(a) for role, a in about.get("roles", {}).items()}
    return Candidate.of(Architecture.from_json(about["architecture"]), **others)


def scored(trial: FrozenTrial, objectives: Sequence[Objective]) -> Scored:
    """Convert a finished trial of a study."""
    about = trial.user_attrs
    values = {o.label: float(v) for o, v in zip(objectives, trial.values, strict=True)}
    estimates = {label: Estimate.from_json(e) for label, e in about["estimates"].items()}
    missed = violations(objectives, as_limits_see(values, estimates))
    return Scored(
        trial.number,
        candidate_of(about),
        {**about["evaluation"]["values"], **about["counted"], **values},
        about["evaluation"]["standard_errors"],
        estimates,
        about["counted"],
        all(violation <= 0 for violation in missed.values()),
        about["evaluation"].get("n"),
    )


def as_limits_see(
    values: Mapping[str, float], estimates: Mapping[str, Estimate]
) -> dict[str, float]:
    """Return the values to compare with limits.

    A predicted cost is replaced by the upper end of its 90% prediction interval.
    """
    return {**values, **{label: e.interval90[1] for label, e in estimates.items()}}


def nearest_miss(result: SearchResult) -> str:
    """Return the message for a search in which no candidate meets all limits."""

    def missed(trial: Scored) -> float:
        found = violations(result.objectives, as_limits_see(trial.values, trial.estimates))
        limits = {o.label: abs(o.limit or 0) or 1.0 for o in result.objectives}
        return sum(max(0.0, v) / limits[label] for label, v in found.items())

    best = min(result.trials, key=missed)
    nearest = as_limits_see(best.values, best.estimates)
    wanted = [
        f"{o.label} {'at most' if o.direction == 'minimize' else 'at least'} {o.limit:g} "
        f"(nearest found: {nearest[o.label]:.4g})"
        for o in result.objectives
        if o.limits_candidates
    ]
    return (
        f"none of {len(result.trials)} candidates meets the limits: {'; '.join(wanted)}. "
        "Relax the limit of the objective, or allow smaller networks in [space]"
    )
