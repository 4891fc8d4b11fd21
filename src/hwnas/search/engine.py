"""The search: ask for candidates, price them, evaluate them, tell what was found."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, Trial

from hwnas.deploy.device import Target
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.predictors import CostSource, Estimate
from hwnas.search.evaluate import Evaluation, Evaluator, Fidelity
from hwnas.search.executor import Executor, InProcess
from hwnas.search.front import non_dominated
from hwnas.search.objective import COUNTED, LATENCY, Objective, label_on, losses, violations
from hwnas.search.samplers import knowledge_of_space, make_sampler
from hwnas.search.scores import ScoreStore
from hwnas.search.study import SearchStudy
from hwnas.search_spaces import Architecture, Candidate, SearchSpace, Workload

__all__ = ["Price", "Scored", "SearchResult", "run_search", "scored_trials"]

_RETRIES_OF_SAMPLER = 5
_RETRIES_AT_RANDOM = 1000


@dataclass(frozen=True)
class Price:
    """What a candidate costs, before it is evaluated.

    Attributes:
        values: Cost by objective label.
        estimates: Of the costs that a source predicted, by objective label; where an objective
            reduces several targets, also by ``metric@target``.
        counted: Exact counts of the workload, all of `COUNTED`.
    """

    values: Mapping[str, float]
    estimates: Mapping[str, Estimate]
    counted: Mapping[str, int]


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
        feasible: Whether all limits are kept.
    """

    number: int
    candidate: Candidate
    values: Mapping[str, float]
    standard_errors: Mapping[str, float]
    estimates: Mapping[str, Estimate]
    counted: Mapping[str, int]
    feasible: bool


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        objectives: What was searched for.
        trials: All evaluated candidates, by number.
        evaluations_made: How many evaluations this call made itself.
    """

    objectives: tuple[Objective, ...]
    trials: tuple[Scored, ...]
    evaluations_made: int = 0

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


def run_search(
    space: SearchSpace,
    objectives: Sequence[Objective],
    evaluator: Evaluator | Executor,
    costs: Mapping[str, CostSource] | None = None,
    trials: int = 200,
    sampler: str = "guided",
    *,
    sampler_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int = 4,
    fidelity: Fidelity = Fidelity(),  # noqa: B008 - frozen
    study: Path | None = None,
    study_name: str = "search",
    scores: ScoreStore | None = None,
    first: Sequence[Architecture] = (),
    on_trial: Callable[[Scored, int], None] = lambda trial, complete: None,
) -> SearchResult:
    """Search a space, or go on with a search.

    Args:
        space: Where candidates come from; a `ProductSpace` if they have several roles.
        objectives: What counts; the first is the one that results are ordered by.
        evaluator: Scores candidates, here or, as an executor, elsewhere.
        costs: For each target of an objective, what prices it; by the target's name.
        trials: How many candidates to evaluate in all, with those that the study already holds.
        sampler: A key of `hwnas.search.SAMPLERS`, or ``"package.module:factory"``.
        sampler_options: Keyword arguments of the sampler.
        seed: Of everything random.
        batch: How many candidates are asked for and evaluated at a time.
        fidelity: How thoroughly to evaluate.
        study: SQLite file of the Optuna study; in memory if None.
        study_name: Name of the study in that file.
        scores: Evaluations that are never made twice.
        first: Points of the space to evaluate before the sampler is asked.
        on_trial: Called after each finished trial, with how many there are.

    Returns:
        All evaluated candidates, no two of the same network.

    Raises:
        InfeasibleError: No candidate keeps the limits; the message names the nearest.
        ConfigError: The sampler or a target is unknown, or an evaluation is not a number.
        RunError: The study is damaged or of other objectives.
        StorageError: The study cannot be written.
    """
    if trials < 1 or batch < 1:
        raise ConfigError(f"trials is {trials} and batch {batch}; expected at least 1")
    executor = evaluator if isinstance(evaluator, Executor) else InProcess(evaluator)
    scores = ScoreStore() if scores is None else scores
    search = _Search(space, tuple(objectives), executor, costs or {}, fidelity, scores)
    knowledge = knowledge_of_space(space, objectives, costs)
    given = sampler, seed, sampler_options or {}, trials, batch, knowledge
    held = SearchStudy(study_name, objectives, lambda known: make_sampler(*given, known), study)
    with contextlib.closing(held):
        rng = random.Random(f"{seed}-{len(held.trials)}")
        search.run(held, trials, batch, rng, first, on_trial)
        found = scored_trials(held, objectives)
    result = SearchResult(tuple(objectives), found, search.evaluations_made)
    if not result.feasible:
        raise InfeasibleError(_nearest(result))
    return result


@dataclass
class _Search:
    """One call of `run_search`."""

    space: SearchSpace
    objectives: tuple[Objective, ...]
    executor: Executor
    costs: Mapping[str, CostSource]
    fidelity: Fidelity
    scores: ScoreStore
    evaluations_made: int = 0
    _seen: dict[str, int] = field(default_factory=dict)

    def run(
        self,
        study: SearchStudy,
        trials: int,
        batch: int,
        rng: random.Random,
        first: Sequence[Architecture],
        on_trial: Callable[[Scored, int], None],
    ) -> None:
        complete = study.complete
        self._seen = {t.user_attrs["candidate"]: t.number for t in complete}
        planned = [a for a in first if self.space.candidate(a).id not in self._seen]
        done = len(complete)
        while done < trials:
            asked = self._ask_batch(study, min(batch, trials - done), planned, rng)
            if not asked:
                return  # every network of the space was evaluated
            candidates = [candidate for _, candidate in asked]
            prices = self._price(candidates)
            for (trial, candidate), price, evaluation in zip(
                asked, prices, self._evaluate(candidates), strict=True
            ):
                frozen = self._tell(study, trial, candidate, price, evaluation)
                done += 1
                on_trial(_scored(frozen, self.objectives), done)

    def _ask_batch(
        self, study: SearchStudy, count: int, planned: list[Architecture], rng: random.Random
    ) -> list[tuple[Trial, Candidate]]:
        asked = []
        for _ in range(count):
            found = self._ask(study, planned, rng)
            if found is None:
                break
            asked.append(found)
        return asked

    def _ask(
        self, study: SearchStudy, planned: list[Architecture], rng: random.Random
    ) -> tuple[Trial, Candidate] | None:
        """A trial of a network that no other trial has; None if there is no such network."""
        for attempt in range(_RETRIES_OF_SAMPLER + 1):
            values: dict[str, Any] | None = None
            if planned:
                values = self.space.parameters(planned.pop(0), rng)
            elif attempt == _RETRIES_OF_SAMPLER:
                unseen = self._unseen(rng)
                if unseen is None:
                    return None
                values = self.space.parameters(unseen, rng)
            trial = study.ask(values)
            candidate = self.space.candidate(self.space.suggest(trial))
            twin = self._seen.get(candidate.id)
            trial.set_user_attr("candidate", candidate.id)
            for name, value in _described(candidate).items():
                trial.set_user_attr(name, value)
            if twin is None:
                self._seen[candidate.id] = trial.number
                return trial, candidate
            trial.set_user_attr("twin", twin)
            study.tell(trial, None)
        return None

    def _unseen(self, rng: random.Random) -> Architecture | None:
        for _ in range(_RETRIES_AT_RANDOM):
            architecture = self.space.sample(rng)
            if self.space.candidate(architecture).id not in self._seen:
                return architecture
        return None

    def _price(self, candidates: Sequence[Candidate]) -> list[Price]:
        return price(self.space, candidates, self.objectives, self.costs)

    def _evaluate(self, candidates: Sequence[Candidate]) -> list[Evaluation]:
        key = self.executor.evaluator.key
        known = {i: self.scores.get(c, key, self.fidelity) for i, c in enumerate(candidates)}
        missing = [i for i, evaluation in known.items() if evaluation is None]
        wanted = [candidates[i] for i in missing]
        for position, evaluation in self.executor.map(wanted, self.fidelity):
            known[missing[position]] = evaluation
            self.scores.put(wanted[position], key, self.fidelity, evaluation)
            self.evaluations_made += 1
        return [evaluation for evaluation in known.values() if evaluation is not None]

    def _tell(
        self,
        study: SearchStudy,
        trial: Trial,
        candidate: Candidate,
        price: Price,
        evaluation: Evaluation,
    ) -> FrozenTrial:
        values = {**evaluation.values, **price.values}
        for label in (o.label for o in self.objectives):
            if not math.isfinite(values.get(label, math.nan)):
                raise ConfigError(
                    f"candidate {candidate.id} has {label} {values.get(label, 'missing')}; "
                    "expected a finite number, so mend the evaluator or the task's scores"
                )
        trial.set_user_attr("evaluation", evaluation.to_json())
        trial.set_user_attr("counted", dict(price.counted))
        trial.set_user_attr("estimates", {k: e.to_json() for k, e in price.estimates.items()})
        seen = _as_limits_see(values, price.estimates)
        for label, violation in violations(self.objectives, seen).items():
            trial.set_constraint(label, violation)
        return study.tell(trial, [values[o.label] for o in self.objectives])


def price(
    space: SearchSpace,
    candidates: Sequence[Candidate],
    objectives: Sequence[Objective],
    costs: Mapping[str, CostSource],
) -> list[Price]:
    """What candidates cost in each objective that is a cost.

    Estimates are those of the objectives and, for one that reduces several targets, of each target.

    Raises:
        ConfigError: An objective names a target that nothing prices.
    """
    workloads: list[Workload] = [space.network.workload(c.network) for c in candidates]
    latencies = [objective for objective in objectives if objective.metric == LATENCY]
    found: dict[str, list[Estimate]] = {}
    for objective in latencies:
        for target in objective.priced_on:
            if target not in costs:
                raise ConfigError(f"nothing prices {objective.label}; pass costs[{target!r}]")
            if target not in found:
                wanted = [Target.parse(target)] * len(workloads)
                found[target] = costs[target].cost(workloads, wanted)
    estimates: list[dict[str, Estimate]] = []
    for i in range(len(candidates)):
        known = {target: column[i] for target, column in found.items()}
        row = {label_on(LATENCY, target): estimate for target, estimate in known.items()}
        estimates.append(row | {o.label: o.estimate(known) for o in latencies})
    counted = [{name: count(w) for name, count in COUNTED.items()} for w in workloads]
    return [
        Price({**counts, **{label: e.mean for label, e in row.items()}}, row, counts)
        for row, counts in zip(estimates, counted, strict=True)
    ]


def scored_trials(study: SearchStudy, objectives: Sequence[Objective]) -> tuple[Scored, ...]:
    """The evaluated candidates of a study."""
    return tuple(_scored(trial, objectives) for trial in study.complete)


def _described(candidate: Candidate) -> dict[str, Any]:
    """Attributes of a trial that say what it evaluates."""
    others = {role: architecture.to_json() for role, architecture in candidate.others.items()}
    return {"architecture": candidate.network.to_json(), **({"roles": others} if others else {})}


def _candidate(about: Mapping[str, Any]) -> Candidate:
    """The inverse of `_described`."""
    others = {role: Architecture.from_json(a) for role, a in about.get("roles", {}).items()}
    return Candidate.of(Architecture.from_json(about["architecture"]), **others)


def _scored(trial: FrozenTrial, objectives: Sequence[Objective]) -> Scored:
    about = trial.user_attrs
    values = {o.label: float(v) for o, v in zip(objectives, trial.values, strict=True)}
    estimates = {label: Estimate.from_json(e) for label, e in about["estimates"].items()}
    missed = violations(objectives, _as_limits_see(values, estimates))
    return Scored(
        trial.number,
        _candidate(about),
        {**about["evaluation"]["values"], **about["counted"], **values},
        about["evaluation"]["standard_errors"],
        estimates,
        about["counted"],
        all(violation <= 0 for violation in missed.values()),
    )


def _as_limits_see(
    values: Mapping[str, float], estimates: Mapping[str, Estimate]
) -> dict[str, float]:
    """Values that limits hold for: of what is predicted, the upper end of the 90% interval."""
    return {**values, **{label: e.interval90[1] for label, e in estimates.items()}}


def _nearest(result: SearchResult) -> str:
    """What to tell a user whose limits nothing meets."""

    def missed(trial: Scored) -> float:
        found = violations(result.objectives, _as_limits_see(trial.values, trial.estimates))
        limits = {o.label: abs(o.limit or 0) or 1.0 for o in result.objectives}
        return sum(max(0.0, v) / limits[label] for label, v in found.items())

    best = min(result.trials, key=missed)
    nearest = _as_limits_see(best.values, best.estimates)
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
