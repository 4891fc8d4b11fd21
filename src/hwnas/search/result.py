"""What a search found: its trials, read from the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from hwnas.predictors import Estimate
from hwnas.search.failure import Failure
from hwnas.search.front import non_dominated
from hwnas.search.objective import Objective, losses, violations
from hwnas.search.rungs import RungCount
from hwnas.search.study import SearchStudy
from hwnas.search_spaces import Architecture, Candidate

__all__ = [
    "Failed",
    "Scored",
    "SearchResult",
    "as_limits_see",
    "candidate_of",
    "described",
    "failed_trials",
    "nearest_miss",
    "scored",
    "scored_trials",
]


@dataclass(frozen=True)
class Scored:
    """A finished trial.

    Attributes:
        number: Of the trial.
        candidate: What was evaluated.
        values: By objective label.
        standard_errors: Of the task's metrics, by name.
        estimates: Of the costs that were predicted, by objective label and ``metric@target``.
        counted: Exact counts of the workload.
        feasible: Whether all limits are kept, by what the search knew.
        images: How many images the candidate was scored on; None where that was not recorded.
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
class Failed:
    """A trial whose evaluation failed.

    Attributes:
        number: Of the trial.
        candidate: What was to be evaluated.
        failure: Why it could not be.
    """

    number: int
    candidate: Candidate
    failure: Failure


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        objectives: What was searched for.
        trials: All evaluated candidates, by number.
        evaluations_made: How many evaluations this call made itself.
        failed: Candidates whose evaluation failed, by number.
        rungs: How many candidates were evaluated at a part of the cost, and how many went on.
    """

    objectives: tuple[Objective, ...]
    trials: tuple[Scored, ...]
    evaluations_made: int = 0
    failed: tuple[Failed, ...] = ()
    rungs: tuple[RungCount, ...] = ()

    @property
    def tried(self) -> int:
        """How many candidates were evaluated, fully or at a part of the cost."""
        return len(self.trials) + sum(rung.evaluated - rung.promoted for rung in self.rungs)

    @property
    def feasible(self) -> tuple[Scored, ...]:
        """Trials that keep every limit."""
        return tuple(trial for trial in self.trials if trial.feasible)

    @property
    def front(self) -> tuple[Scored, ...]:
        """Feasible trials that no other one dominates, in the order of the first objective."""
        feasible = self.feasible
        table = losses(self.objectives, [trial.values for trial in feasible])
        front = [t for t, keep in zip(feasible, non_dominated(table), strict=True) if keep]
        first = self.objectives[0]
        return tuple(sorted(front, key=lambda t: first.loss(t.values[first.label])))


def scored_trials(study: SearchStudy, objectives: Sequence[Objective]) -> tuple[Scored, ...]:
    """The evaluated candidates of a study."""
    return tuple(scored(trial, objectives) for trial in study.complete)


def failed_trials(study: SearchStudy) -> tuple[Failed, ...]:
    """The candidates of a study whose evaluation failed."""
    return tuple(
        Failed(
            trial.number,
            candidate_of(trial.user_attrs),
            Failure.from_json(trial.user_attrs["failure"]),
        )
        for trial in study.failed
        if "failure" in trial.user_attrs
    )


def described(candidate: Candidate) -> dict[str, Any]:
    """Attributes of a trial that say what it evaluates."""
    others = {role: architecture.to_json() for role, architecture in candidate.others.items()}
    return {"architecture": candidate.network.to_json(), **({"roles": others} if others else {})}


def candidate_of(about: Mapping[str, Any]) -> Candidate:
    """The inverse of `described`."""
    others = {role: Architecture.from_json(a) for role, a in about.get("roles", {}).items()}
    return Candidate.of(Architecture.from_json(about["architecture"]), **others)


def scored(trial: FrozenTrial, objectives: Sequence[Objective]) -> Scored:
    """What a finished trial of a study says."""
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
    """Values that limits hold for: of what is predicted, the upper end of the 90% interval."""
    return {**values, **{label: e.interval90[1] for label, e in estimates.items()}}


def nearest_miss(result: SearchResult) -> str:
    """What to tell a user whose limits nothing meets."""

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
        if o.limit is not None
    ]
    return (
        f"none of {len(result.trials)} candidates keeps the limits: {'; '.join(wanted)}. "
        "Relax the limit of the objective, or allow smaller networks in [space]"
    )
