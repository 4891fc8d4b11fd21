"""Search loop: ask for candidates, predict their costs, evaluate them, record the results."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import FrozenTrial, Trial, TrialState

from hwnas.errors import InfeasibleError, WorkerError
from hwnas.predictors import CostSource
from hwnas.search.engine.calls import EvaluationRunner
from hwnas.search.engine.executor import Executor, InProcess
from hwnas.search.engine.failure import FailureLimit, Outcome
from hwnas.search.engine.options import SearchCallbacks, SearchOptions, StudyStorage
from hwnas.search.engine.result import (
    FailedTrial,
    SearchResult,
    as_limits_see,
    candidate_of,
    described,
    failed_trials,
    nearest_miss,
    scored,
    scored_trials,
)
from hwnas.search.engine.rungs import RUNGS, rung_counts
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.scoring import Evaluation
from hwnas.search.objectives.candidate_costs import CandidateCosts, check_costs, predict_costs
from hwnas.search.objectives.objective import Objective, violations
from hwnas.search.samplers import features_of_space, make_sampler
from hwnas.search.study.search_study import SearchStudy
from hwnas.search.study.shared_study import SharedStudy
from hwnas.search.study.trial_identity import TrialIdentity
from hwnas.search_spaces import Architecture, Candidate, SearchSpace

__all__ = ["run_search"]

_RETRIES_OF_SAMPLER = 5
_RETRIES_AT_RANDOM = 1000
_POLL_SECONDS = 0.5


def run_search(
    space: SearchSpace,
    objectives: Sequence[Objective],
    evaluator: Evaluator | Executor,
    options: SearchOptions = SearchOptions(),  # noqa: B008 - frozen
    *,
    costs: Mapping[str, CostSource] | None = None,
    storage: StudyStorage | None = None,
    callbacks: SearchCallbacks = SearchCallbacks(),  # noqa: B008 - frozen
) -> SearchResult:
    """Search a space, or resume a search.

    Args:
        space: Space of the candidates; a `ProductSpace` if they have several roles.
        objectives: Objectives of the search; results are ordered by the first one.
        evaluator: Evaluator that scores candidates in this process, or an executor that runs an
            evaluator elsewhere.
        options: Number of candidates, how they are proposed, and how they are evaluated.
        costs: Cost source of each metric on a target that the objectives name, by its label, such
            as ``"latency_ms@cpu-onnxruntime-fp32-b1-t1"``.
        storage: Places where trials and evaluations are kept; in memory if None.
        callbacks: Functions to call as the search proceeds.

    Returns:
        All evaluated candidates, no two with the same network.

    Raises:
        InfeasibleError: No candidate meets all limits; the message names the nearest one.
        ConfigError: The sampler or a target is unknown.
        WorkerError: (Nearly) every evaluation fails, or the workers are gone.
        RunError: The study is damaged, or a shared study has other objectives or inputs.
        StorageError: The study cannot be written.
    """
    storage = storage or StudyStorage()
    if storage.sharing is not None:  # with one seed, all searches would propose the same candidates
        own_seed = (options.seed + zlib.crc32(storage.sharing.driver.encode())) % 2**32
        options = replace(options, seed=own_seed)
    executor = evaluator if isinstance(evaluator, Executor) else InProcess(evaluator)
    calls = EvaluationRunner(
        executor, storage.scores, options.retries, on_outcome=callbacks.on_evaluation
    )
    search = _Search(space, tuple(objectives), calls, costs or {}, options, callbacks)
    given = space, objectives, executor.evaluator, options.fidelity, options.rungs, costs or {}
    identity = TrialIdentity.of(*given)
    with contextlib.closing(search.study(storage, identity)) as study:
        search.run(study, identity)
        counts = rung_counts(study.trials)
        found = scored_trials(study, objectives), calls.made, failed_trials(study), counts
    result = SearchResult(tuple(objectives), *found)
    if not result.trials:
        raise WorkerError(
            f"all {len(result.failed)} networks of the space have failed: "
            f"{result.failed[-1].failure.reason}"
        )
    if not result.feasible:
        raise InfeasibleError(nearest_miss(result))
    return result


@dataclass
class _Search:
    """State of one call of `run_search`."""

    space: SearchSpace
    objectives: tuple[Objective, ...]
    calls: EvaluationRunner
    costs: Mapping[str, CostSource]
    options: SearchOptions
    callbacks: SearchCallbacks
    _seen: dict[str, int] = field(default_factory=dict)
    """Trial numbers by candidate id."""
    _elsewhere: dict[str, int] = field(default_factory=dict)
    """Subset of `_seen`: candidates that another search has claimed."""
    _planned: list[Architecture] = field(default_factory=list)
    """Points of the space to evaluate before the sampler is asked."""
    _enough: bool = False
    """Whether other searches have claimed all trials that are left of the budget."""

    def study(self, storage: StudyStorage, identity: TrialIdentity) -> SearchStudy:
        """Open the study of this search."""
        options, sharing = self.options, storage.sharing

        def shared(known: Sequence[int]) -> SharedStudy:
            assert sharing is not None
            return SharedStudy(sharing, self.objectives, identity.shared, known)

        sampled = (
            options.sampler,
            options.seed,
            options.sampler_options,
            options.trials,
            options.batch,
            features_of_space(self.space, self.objectives, self.costs),
        )
        return SearchStudy(
            storage.name,
            self.objectives,
            lambda known: make_sampler(*sampled, known),
            storage.path,
            None if sharing is None else shared,
            options.rungs.pruner,
            identity,
        )

    def _evaluated_before(
        self, stale: Sequence[FrozenTrial], identity: TrialIdentity
    ) -> list[Architecture]:
        """Store the evaluations of stale trials that are still valid for this search.

        Returns:
            The candidates' points of the space, to be tried again with new costs and objectives.
        """
        found = {}
        for trial in stale:
            if not identity.evaluates(trial) or trial.state is TrialState.FAIL:
                continue
            if trial.state is not TrialState.COMPLETE and RUNGS not in trial.user_attrs:
                continue  # a duplicate, which was not evaluated
            candidate = candidate_of(trial.user_attrs)
            found[candidate.id] = self.space.point(candidate)
            if "evaluation" in trial.user_attrs:
                evaluation = Evaluation.from_json(trial.user_attrs["evaluation"])
                self.calls.keep(candidate, self.options.fidelity, evaluation)
        return list(found.values())

    def run(self, study: SearchStudy, identity: TrialIdentity) -> None:
        """Evaluate candidates until the study has as many trials as the options ask for."""
        trials, batch = self.options.trials, self.options.batch
        again = self._evaluated_before(study.superseded, identity)
        outcomes = _outcomes(study)
        limit = FailureLimit(evaluated=sum(evaluated for _, _, evaluated in outcomes))
        forgiven = limit.forgiven([(name, ok) for name, _, ok in outcomes])
        self._seen = {name: number for name, number, ok in outcomes if ok or name not in forgiven}
        planned = {self.space.candidate(a).id: a for a in [*again, *self.options.first]}
        self._planned = [a for name, a in planned.items() if name not in self._seen]
        done, own = len(study.complete) + len(study.stopped), study.own
        while True:
            received, others = self._receive(study, done)
            done += received
            if done >= trials or self._stalled(study):
                return
            # A batch that was interrupted by a kill is completed before the next one starts.
            size = min(batch - own % batch, trials - done - others)
            asked = self._ask_batch(study, size)
            if not asked and (others or self._enough):
                time.sleep(_POLL_SECONDS)  # if other searches die, we take over their candidates
                continue
            if not asked:
                return  # every network of the space was evaluated
            candidates = [candidate for _, candidate in asked]
            costs = self._predict_costs(candidates)
            found = self._evaluate(study, asked, costs)
            for (trial, candidate), cost, outcome in zip(asked, costs, found, strict=True):
                own += 1
                done += self._finish(study, trial, candidate, cost, outcome, done, limit)

    def _stalled(self, study: SearchStudy) -> bool:
        """Return whether as many candidates as the patience were evaluated since the front grew.

        The newest network of the front is the last one that the front grew by: if it was dominated,
        then by a newer one.
        """
        if self.options.patience is None:
            return False
        front = SearchResult(self.objectives, scored_trials(study, self.objectives)).front
        newest = max((trial.number for trial in front), default=-1)
        since = [t for t in (*study.complete, *study.stopped) if t.number > newest]
        return len(since) >= self.options.patience

    def _receive(self, study: SearchStudy, done: int) -> tuple[int, int]:
        """Take over the results and the abandoned candidates of other searches.

        Returns:
            Number of candidates that others have evaluated since the last call, and number that
            they are evaluating.
        """
        received, abandoned, others = study.receive()
        evaluated = 0
        for trial in received:
            self._seen[trial.user_attrs["candidate"]] = trial.number
            if trial.state is TrialState.COMPLETE:
                evaluated += 1
                self.callbacks.on_trial(scored(trial, self.objectives), done + evaluated)
            elif RUNGS in trial.user_attrs:
                evaluated += 1
        for trial in abandoned:
            name = trial.user_attrs["candidate"]
            if self._elsewhere.pop(name, None) is not None:
                del self._seen[name]
            if name not in self._seen:
                self._planned.append(self.space.point(candidate_of(trial.user_attrs)))
        return evaluated, others

    def _finish(
        self,
        study: SearchStudy,
        trial: Trial,
        candidate: Candidate,
        costs: CandidateCosts,
        outcome: Outcome | None,
        done: int,
        limit: FailureLimit,
    ) -> bool:
        """Record the outcome of a candidate; return whether it was evaluated, at least in part."""
        if outcome is None:
            study.tell(trial, None)
            limit.succeeded()
            return True
        if isinstance(outcome, Evaluation):
            outcome = check_costs(candidate, self.objectives, costs, outcome)
        if isinstance(outcome, Evaluation):
            frozen = self._tell(study, trial, costs, outcome)
            limit.succeeded()
            self.callbacks.on_trial(scored(frozen, self.objectives), done + 1)
            return True
        trial.set_user_attr("failure", outcome.to_json())
        self.callbacks.on_failure(FailedTrial(study.fail(trial).number, candidate, outcome))
        limit.failed(outcome)
        return False

    def _ask_batch(self, study: SearchStudy, count: int) -> list[tuple[Trial, Candidate]]:
        asked = []
        self._enough = False
        for _ in range(count):
            found = self._ask(study)
            if found is None:
                break
            asked.append(found)
        return asked

    def _ask(self, study: SearchStudy) -> tuple[Trial, Candidate] | None:
        """Return a trial with a network that no other trial has.

        Returns:
            The trial and its candidate; None if no such network was found, or if other searches
            have claimed all trials that are left.
        """
        for attempt in itertools.count():
            # Seeded by the trial's number, so that a resumed search makes the same draws.
            rng = random.Random(f"{self.options.seed}-{study.asked}")
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
            earlier = self._seen.get(candidate.id)
            trial.set_user_attr("candidate", candidate.id)
            for name, value in described(candidate).items():
                trial.set_user_attr(name, value)
            claim = study.claim(trial, self.options.trials) if earlier is None else "theirs"
            if claim == "ours":
                self._seen[candidate.id] = trial.number
                return trial, candidate
            if earlier is not None:
                trial.set_user_attr("twin", earlier)
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
        costs: Sequence[CandidateCosts],
    ) -> list[Outcome | None]:
        """Return the outcomes of a batch; None for candidates that stop before the last rung."""
        outcomes: list[Outcome | None] = [None] * len(asked)
        going = list(range(len(asked)))
        metrics = self._metrics(costs[0])
        for rung, share in enumerate(self.options.rungs.rungs):
            fidelity = replace(self.options.fidelity, share=share)
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
                    values[i] = {**outcome.values, **costs[i].values}
                else:
                    outcomes[i] = outcome
            trials = [asked[i][0] for i in values]
            given = trials, list(values.values()), study.trials, self.objectives
            promoted = self.options.rungs.promote(rung, *given)
            going = [i for i, goes in zip(values, promoted, strict=True) if goes]
        return outcomes

    def _metrics(self, costs: CandidateCosts) -> list[str]:
        """Return the metrics that the objectives need from the evaluator."""
        return [o.label for o in self.objectives if o.label not in costs.values]

    def _predict_costs(self, candidates: Sequence[Candidate]) -> list[CandidateCosts]:
        return predict_costs(self.space, candidates, self.objectives, self.costs)

    def _tell(
        self, study: SearchStudy, trial: Trial, costs: CandidateCosts, evaluation: Evaluation
    ) -> FrozenTrial:
        values = {**evaluation.values, **costs.values}
        trial.set_user_attr("evaluation", evaluation.to_json())
        trial.set_user_attr("counted", dict(costs.counted))
        trial.set_user_attr("estimates", {k: e.to_json() for k, e in costs.estimates.items()})
        seen = as_limits_see(values, costs.estimates)
        for label, violation in violations(self.objectives, seen).items():
            trial.set_constraint(label, violation)
        return study.tell(trial, [values[o.label] for o in self.objectives])


def _outcomes(study: SearchStudy) -> list[tuple[str, int, bool]]:
    """Return the id of each candidate tried, its trial's number, and whether it was evaluated."""
    return [
        (trial.user_attrs["candidate"], trial.number, trial.state is not TrialState.FAIL)
        for trial in study.trials
        if "candidate" in trial.user_attrs
        and (trial.state in (TrialState.COMPLETE, TrialState.FAIL) or RUNGS in trial.user_attrs)
    ]
