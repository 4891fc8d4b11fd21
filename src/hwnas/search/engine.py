"""The search: ask for candidates, price them, evaluate them, tell what was found."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, Trial, TrialState

from hwnas.deploy.device import Target
from hwnas.errors import ConfigError, InfeasibleError, WorkerError
from hwnas.predictors import CostSource, Estimate
from hwnas.search.calls import Calls
from hwnas.search.evaluate import Evaluation, Evaluator, Fidelity
from hwnas.search.executor import Executor, InProcess
from hwnas.search.failure import Failure, Outcome, Patience
from hwnas.search.front import non_dominated
from hwnas.search.objective import COUNTED, LATENCY, Objective, label_on, losses, violations
from hwnas.search.rungs import RUNGS, RungCount, Rungs, rung_counts
from hwnas.search.samplers import knowledge_of_space, make_sampler
from hwnas.search.scores import ScoreStore
from hwnas.search.shared_study import SharedStudy, Sharing
from hwnas.search.study import SearchStudy
from hwnas.search_spaces import Architecture, Candidate, SearchSpace, Workload

__all__ = [
    "Failed",
    "Price",
    "Scored",
    "SearchResult",
    "failed_trials",
    "price",
    "run_search",
    "scored_trials",
]

_RETRIES_OF_SAMPLER = 5
_RETRIES_AT_RANDOM = 1000
_POLL_SECONDS = 0.5


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
    rungs: Rungs = Rungs(),  # noqa: B008 - frozen
    study: Path | None = None,
    study_name: str = "search",
    sharing: Sharing | None = None,
    scores: ScoreStore | None = None,
    first: Sequence[Architecture] = (),
    retries: int = 1,
    on_trial: Callable[[Scored, int], None] = lambda trial, complete: None,
    on_failure: Callable[[Failed], None] = lambda failed: None,
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
        batch: How many candidates are asked for and evaluated at a time. A batch is finished
            before the next is asked for, also where a search goes on in the middle of one.
        fidelity: How thoroughly to evaluate.
        rungs: With several, most candidates are evaluated at a part of that only. They count among
            ``trials`` and are PRUNED trials with their records as the attribute ``rungs``.
        study: SQLite file of the Optuna study; in memory if None.
        study_name: Name of the study in that file.
        sharing: A study that other searches work on, too, so that none evaluates what another does.
            ``trials`` are then those of all together, and all of them are kept in ``study``.
        scores: Evaluations that are never made twice.
        first: Points of the space to evaluate before the sampler is asked.
        retries: How often an evaluation that failed is tried again. One that fails each time is a
            FAIL trial with its reason as the attribute ``failure``, and the search goes on.
        on_trial: Called after each finished trial, with how many there are.
        on_failure: Called after each trial that failed.

    Returns:
        All evaluated candidates, no two of the same network.

    Raises:
        InfeasibleError: No candidate keeps the limits; the message names the nearest.
        ConfigError: The sampler or a target is unknown.
        WorkerError: (Nearly) every evaluation fails, or the workers are gone.
        RunError: The study is damaged or of other objectives.
        StorageError: The study cannot be written.
    """
    if trials < 1 or batch < 1 or retries < 0:
        raise ConfigError(
            f"trials is {trials}, batch {batch} and retries {retries}; expected at least 1, 1 and 0"
        )
    executor = evaluator if isinstance(evaluator, Executor) else InProcess(evaluator)
    scores = ScoreStore() if scores is None else scores
    calls = Calls(executor, scores, retries)
    search = _Search(
        space, tuple(objectives), calls, costs or {}, fidelity, rungs, on_trial, on_failure
    )

    def shared(known: Sequence[int]) -> SharedStudy:
        assert sharing is not None
        identity = {"space": space.fingerprint, "evaluator": executor.evaluator.key}
        return SharedStudy(sharing, objectives, {**identity, "fidelity": fidelity.key}, known)

    if sharing is not None:  # each by a seed of its own, or all would propose the same
        seed = (seed + zlib.crc32(sharing.driver.encode())) % 2**32
    knowledge = knowledge_of_space(space, objectives, costs)
    given = sampler, seed, sampler_options or {}, trials, batch, knowledge
    held = SearchStudy(
        study_name,
        objectives,
        lambda known: make_sampler(*given, known),
        study,
        None if sharing is None else shared,
        rungs.pruner,
    )
    with contextlib.closing(held):
        search.run(held, trials, batch, seed, first)
        counts = rung_counts(held.trials)
        found = scored_trials(held, objectives), calls.made, failed_trials(held), counts
    result = SearchResult(tuple(objectives), *found)
    if not result.trials:
        raise WorkerError(
            f"all {len(result.failed)} networks of the space have failed: "
            f"{result.failed[-1].failure.reason}"
        )
    if not result.feasible:
        raise InfeasibleError(_nearest(result))
    return result


@dataclass
class _Search:
    """One call of `run_search`."""

    space: SearchSpace
    objectives: tuple[Objective, ...]
    calls: Calls
    costs: Mapping[str, CostSource]
    fidelity: Fidelity
    rungs: Rungs
    on_trial: Callable[[Scored, int], None]
    on_failure: Callable[[Failed], None]
    _seen: dict[str, int] = field(default_factory=dict)
    """Trials by candidate."""
    _elsewhere: dict[str, int] = field(default_factory=dict)
    """Those of them that another search has claimed."""
    _planned: list[Architecture] = field(default_factory=list)
    """What is evaluated before the sampler is asked."""
    _enough: bool = False
    """Whether other searches have claimed all that is left."""

    def run(
        self,
        study: SearchStudy,
        trials: int,
        batch: int,
        seed: int,
        first: Sequence[Architecture],
    ) -> None:
        patience = Patience(evaluated=len(study.complete))
        outcomes = _outcomes(study)
        forgiven = patience.forgiven([(name, ok) for name, _, ok in outcomes])
        self._seen = {name: number for name, number, ok in outcomes if ok or name not in forgiven}
        self._planned = [a for a in first if self.space.candidate(a).id not in self._seen]
        done, own = len(study.complete) + len(study.stopped), study.own
        while True:
            received, others = self._receive(study, done)
            done += received
            if done >= trials:
                return
            # A batch that a kill has cut in two is completed before the next is asked for.
            size = min(batch - own % batch, trials - done - others)
            asked = self._ask_batch(study, size, trials, seed)
            if not asked and (others or self._enough):
                time.sleep(_POLL_SECONDS)  # what others are at may be left to us, if they die
                continue
            if not asked:
                return  # every network of the space was evaluated
            candidates = [candidate for _, candidate in asked]
            prices = self._price(candidates)
            found = self._evaluate(study, asked, prices)
            for (trial, candidate), price, outcome in zip(asked, prices, found, strict=True):
                own += 1
                done += self._finish(study, trial, candidate, price, outcome, done, patience)

    def _receive(self, study: SearchStudy, done: int) -> tuple[int, int]:
        """How many candidates other searches have evaluated meanwhile, and are evaluating."""
        received, abandoned, others = study.receive()
        evaluated = 0
        for trial in received:
            self._seen[trial.user_attrs["candidate"]] = trial.number
            if trial.state is TrialState.COMPLETE:
                evaluated += 1
                self.on_trial(_scored(trial, self.objectives), done + evaluated)
            elif RUNGS in trial.user_attrs:
                evaluated += 1
        for trial in abandoned:
            name = trial.user_attrs["candidate"]
            if self._elsewhere.pop(name, None) is not None:
                del self._seen[name]
            if name not in self._seen:
                self._planned.append(self.space.point(_candidate(trial.user_attrs)))
        return evaluated, others

    def _finish(
        self,
        study: SearchStudy,
        trial: Trial,
        candidate: Candidate,
        price: Price,
        outcome: Outcome | None,
        done: int,
        patience: Patience,
    ) -> bool:
        """Tell what became of a candidate; gives whether it was evaluated, at least in part."""
        if outcome is None:
            study.tell(trial, None)
            patience.succeeded()
            return True
        if isinstance(outcome, Evaluation):
            outcome = _priced(candidate, self.objectives, price, outcome)
        if isinstance(outcome, Evaluation):
            frozen = self._tell(study, trial, price, outcome)
            patience.succeeded()
            self.on_trial(_scored(frozen, self.objectives), done + 1)
            return True
        trial.set_user_attr("failure", outcome.to_json())
        self.on_failure(Failed(study.fail(trial).number, candidate, outcome))
        patience.failed(outcome)
        return False

    def _ask_batch(
        self, study: SearchStudy, count: int, trials: int, seed: int
    ) -> list[tuple[Trial, Candidate]]:
        asked = []
        self._enough = False
        for _ in range(count):
            found = self._ask(study, trials, seed)
            if found is None:
                break
            asked.append(found)
        return asked

    def _ask(self, study: SearchStudy, trials: int, seed: int) -> tuple[Trial, Candidate] | None:
        """A trial of a network that no other trial has; None if there is no such network."""
        for attempt in itertools.count():
            # By the trial's number, so that a search that was killed goes on with the same draws.
            rng = random.Random(f"{seed}-{study.asked}")
            values: dict[str, Any] | None = None
            if self._planned:
                values = self.space.parameters(self._planned.pop(0), rng)
            elif attempt >= _RETRIES_OF_SAMPLER:
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
            claim = study.claim(trial, trials) if twin is None else "theirs"
            if claim == "ours":
                self._seen[candidate.id] = trial.number
                return trial, candidate
            if twin is not None:
                trial.set_user_attr("twin", twin)
            elif claim == "theirs":
                self._seen[candidate.id] = self._elsewhere[candidate.id] = trial.number
            study.tell(trial, None)
            if claim == "enough":
                self._enough = True
                return None
        return None

    def _unseen(self, rng: random.Random) -> Architecture | None:
        for _ in range(_RETRIES_AT_RANDOM):
            architecture = self.space.sample(rng)
            if self.space.candidate(architecture).id not in self._seen:
                return architecture
        return None

    def _evaluate(
        self,
        study: SearchStudy,
        asked: Sequence[tuple[Trial, Candidate]],
        prices: Sequence[Price],
    ) -> list[Outcome | None]:
        """What becomes of a batch; None of those that stop at a rung before the last."""
        outcomes: list[Outcome | None] = [None] * len(asked)
        going = list(range(len(asked)))
        metrics = self._metrics(prices[0])
        for rung, share in enumerate(self.rungs.rungs):
            fidelity = replace(self.fidelity, share=share)
            candidates = [asked[i][1] for i in going]
            found = dict(
                zip(going, self.calls.outcomes(candidates, fidelity, metrics), strict=True)
            )
            if share == 1:
                outcomes = [found.get(i, outcome) for i, outcome in enumerate(outcomes)]
                break
            values = {}
            for i, outcome in found.items():
                if isinstance(outcome, Evaluation):
                    values[i] = {**outcome.values, **prices[i].values}
                else:
                    outcomes[i] = outcome
            trials = [asked[i][0] for i in values]
            given = trials, list(values.values()), study.trials, self.objectives
            promoted = self.rungs.promote(rung, *given)
            going = [i for i, goes in zip(values, promoted, strict=True) if goes]
        return outcomes

    def _metrics(self, price: Price) -> list[str]:
        """What the objectives need from the evaluator."""
        return [o.label for o in self.objectives if o.label not in price.values]

    def _price(self, candidates: Sequence[Candidate]) -> list[Price]:
        return price(self.space, candidates, self.objectives, self.costs)

    def _tell(
        self, study: SearchStudy, trial: Trial, price: Price, evaluation: Evaluation
    ) -> FrozenTrial:
        values = {**evaluation.values, **price.values}
        trial.set_user_attr("evaluation", evaluation.to_json())
        trial.set_user_attr("counted", dict(price.counted))
        trial.set_user_attr("estimates", {k: e.to_json() for k, e in price.estimates.items()})
        seen = _as_limits_see(values, price.estimates)
        for label, violation in violations(self.objectives, seen).items():
            trial.set_constraint(label, violation)
        return study.tell(trial, [values[o.label] for o in self.objectives])


def _outcomes(study: SearchStudy) -> list[tuple[str, int, bool]]:
    """Of every candidate that was tried: its id, its trial's number, whether it was evaluated."""
    return [
        (trial.user_attrs["candidate"], trial.number, trial.state is not TrialState.FAIL)
        for trial in study.trials
        if "candidate" in trial.user_attrs
        and (trial.state in (TrialState.COMPLETE, TrialState.FAIL) or RUNGS in trial.user_attrs)
    ]


def _priced(
    candidate: Candidate, objectives: Sequence[Objective], price: Price, evaluation: Evaluation
) -> Outcome:
    """The evaluation, if the costs beside it are numbers too."""
    for label in (o.label for o in objectives if o.label in price.values):
        if not math.isfinite(price.values[label]):
            value = price.values[label]
            return Failure("bad result", f"{candidate.id} is priced at {label} {value}")
    return evaluation


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


def failed_trials(study: SearchStudy) -> tuple[Failed, ...]:
    """The candidates of a study whose evaluation failed."""
    return tuple(
        Failed(
            trial.number,
            _candidate(trial.user_attrs),
            Failure.from_json(trial.user_attrs["failure"]),
        )
        for trial in study.failed
        if "failure" in trial.user_attrs
    )


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
