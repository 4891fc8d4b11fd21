"""Search loop: ask for candidates, predict their costs, evaluate them, record the results."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from hwnas.errors import ConfigError, InfeasibleError, WorkerError
from hwnas.predictors import CostSource
from hwnas.search.engine.calls import EvaluationRunner
from hwnas.search.engine.executor import Executor, InProcess
from hwnas.search.engine.failure import Outcome, Patience
from hwnas.search.engine.result import (
    FailedTrial,
    Scored,
    SearchResult,
    as_limits_see,
    candidate_of,
    described,
    failed_trials,
    nearest_miss,
    scored,
    scored_trials,
)
from hwnas.search.engine.rungs import RUNGS, Rungs, rung_counts
from hwnas.search.engine.shared_study import SharedStudy, Sharing
from hwnas.search.engine.study import SearchStudy
from hwnas.search.engine.trial_identity import TrialIdentity
from hwnas.search.evaluation.evaluate import Evaluation, Evaluator, Fidelity
from hwnas.search.evaluation.scores import ScoreStore
from hwnas.search.objectives.candidate_costs import CandidateCosts, check_costs, predict_costs
from hwnas.search.objectives.objective import Objective, violations
from hwnas.search.samplers import knowledge_of_space, make_sampler
from hwnas.search_spaces import Architecture, Candidate, SearchSpace

__all__ = ["run_search"]

_RETRIES_OF_SAMPLER = 5
_RETRIES_AT_RANDOM = 1000
_POLL_SECONDS = 0.5


def run_search(
    space: SearchSpace,
    objectives: Sequence[Objective],
    evaluator: Evaluator | Executor,
    costs: Mapping[str, CostSource] | None = None,
    trials: int = 200,
    sampler: str | Callable[..., BaseSampler] = "guided",
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
    on_failure: Callable[[FailedTrial], None] = lambda failed: None,
    on_evaluation: Callable[[Candidate, Fidelity, Outcome], None] = lambda *_: None,
) -> SearchResult:
    """Search a space, or resume a search.

    Args:
        space: Space of the candidates; a `ProductSpace` if they have several roles.
        objectives: Objectives of the search; results are ordered by the first one.
        evaluator: Evaluator that scores candidates in this process, or an executor that runs an
            evaluator elsewhere.
        costs: Cost source of each metric on a target that the objectives name, by its label, such
            as ``"latency_ms@cpu-onnxruntime-fp32-b1-t1"``.
        trials: Number of candidates to evaluate in total, including those already in the study.
        sampler: Factory of the sampler, or its name; see `make_sampler`.
        sampler_options: Keyword arguments of the sampler.
        seed: Seed of all random draws.
        batch: Number of candidates proposed and evaluated together. A batch is finished before the
            next one is proposed, also if a search is resumed within a batch.
        fidelity: Fidelity of a full evaluation.
        rungs: Rungs of successive halving. With several rungs, most candidates are evaluated only
            at a share of the full cost. These count towards ``trials``, and are PRUNED trials with
            their records in the attribute ``rungs``.
        study: SQLite file of the Optuna study; in memory if None. Trials in the file that were
            evaluated or predicted from other inputs, or for other objectives, stay as history,
            marked ``stale``. If only costs or objectives have changed, their evaluations are
            reused.
        study_name: Name of the study in that file.
        sharing: Study shared with other searches, so that no candidate is evaluated twice.
            ``trials`` then counts the trials of all searches, and all of them are kept in
            ``study``.
        scores: Store of evaluations; an evaluation in it is not made again.
        first: Points of the space to evaluate before the sampler is asked.
        retries: Number of times that a failed evaluation is repeated. A candidate that fails each
            time becomes a FAIL trial with the reason in the attribute ``failure``, and the search
            continues.
        on_trial: Callback after each finished trial, with the number of trials finished so far.
        on_failure: Callback after each failed trial.
        on_evaluation: Callback after each evaluation; a trial has one evaluation per rung.

    Returns:
        All evaluated candidates, no two with the same network.

    Raises:
        InfeasibleError: No candidate meets all limits; the message names the nearest one.
        ConfigError: The sampler or a target is unknown.
        WorkerError: (Nearly) every evaluation fails, or the workers are gone.
        RunError: The study is damaged, or a shared study has other objectives or inputs.
        StorageError: The study cannot be written.
    """
    if trials < 1 or batch < 1 or retries < 0:
        raise ConfigError(
            f"trials is {trials}, batch {batch} and retries {retries}; expected at least 1, 1 and 0"
        )
    executor = evaluator if isinstance(evaluator, Executor) else InProcess(evaluator)
    scores = ScoreStore() if scores is None else scores
    calls = EvaluationRunner(executor, scores, retries, on_outcome=on_evaluation)
    search = _Search(
        space, tuple(objectives), calls, costs or {}, fidelity, rungs, on_trial, on_failure
    )

    given = space, objectives, executor.evaluator, fidelity, rungs, costs or {}
    identity = TrialIdentity.of(*given)

    def shared(known: Sequence[int]) -> SharedStudy:
        assert sharing is not None
        return SharedStudy(sharing, objectives, identity.shared, known)

    if sharing is not None:  # with the same seed, all searches would propose the same candidates
        seed = (seed + zlib.crc32(sharing.driver.encode())) % 2**32
    knowledge = knowledge_of_space(space, objectives, costs)
    sampled = sampler, seed, sampler_options or {}, trials, batch, knowledge
    held = SearchStudy(
        study_name,
        objectives,
        lambda known: make_sampler(*sampled, known),
        study,
        None if sharing is None else shared,
        rungs.pruner,
        identity,
    )
    with contextlib.closing(held):
        again = search.evaluated_before(held.superseded, identity)
        search.run(held, trials, batch, seed, [*again, *first])
        counts = rung_counts(held.trials)
        found = scored_trials(held, objectives), calls.made, failed_trials(held), counts
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
    fidelity: Fidelity
    rungs: Rungs
    on_trial: Callable[[Scored, int], None]
    on_failure: Callable[[FailedTrial], None]
    _seen: dict[str, int] = field(default_factory=dict)
    """Trial numbers by candidate id."""
    _elsewhere: dict[str, int] = field(default_factory=dict)
    """Subset of `_seen`: candidates that another search has claimed."""
    _planned: list[Architecture] = field(default_factory=list)
    """Points of the space to evaluate before the sampler is asked."""
    _enough: bool = False
    """Whether other searches have claimed all trials that are left of the budget."""

    def evaluated_before(
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
                self.calls.keep(
                    candidate, self.fidelity, Evaluation.from_json(trial.user_attrs["evaluation"])
                )
        return list(found.values())

    def run(
        self,
        study: SearchStudy,
        trials: int,
        batch: int,
        seed: int,
        first: Sequence[Architecture],
    ) -> None:
        outcomes = _outcomes(study)
        patience = Patience(evaluated=sum(evaluated for _, _, evaluated in outcomes))
        forgiven = patience.forgiven([(name, ok) for name, _, ok in outcomes])
        self._seen = {name: number for name, number, ok in outcomes if ok or name not in forgiven}
        planned = {self.space.candidate(a).id: a for a in first}
        self._planned = [a for name, a in planned.items() if name not in self._seen]
        done, own = len(study.complete) + len(study.stopped), study.own
        while True:
            received, others = self._receive(study, done)
            done += received
            if done >= trials:
                return
            # A batch that was interrupted by a kill is completed before the next one starts.
            size = min(batch - own % batch, trials - done - others)
            asked = self._ask_batch(study, size, trials, seed)
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
                done += self._finish(study, trial, candidate, cost, outcome, done, patience)

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
                self.on_trial(scored(trial, self.objectives), done + evaluated)
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
        patience: Patience,
    ) -> bool:
        """Record the outcome of a candidate; return whether it was evaluated, at least in part."""
        if outcome is None:
            study.tell(trial, None)
            patience.succeeded()
            return True
        if isinstance(outcome, Evaluation):
            outcome = check_costs(candidate, self.objectives, costs, outcome)
        if isinstance(outcome, Evaluation):
            frozen = self._tell(study, trial, costs, outcome)
            patience.succeeded()
            self.on_trial(scored(frozen, self.objectives), done + 1)
            return True
        trial.set_user_attr("failure", outcome.to_json())
        self.on_failure(FailedTrial(study.fail(trial).number, candidate, outcome))
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
        """Return a trial with a network that no other trial has.

        Returns:
            The trial and its candidate; None if no such network was found, or if other searches
            have claimed all trials that are left.
        """
        for attempt in itertools.count():
            # Seeded by the trial's number, so that a resumed search makes the same draws.
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
            for name, value in described(candidate).items():
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
        costs: Sequence[CandidateCosts],
    ) -> list[Outcome | None]:
        """Return the outcomes of a batch; None for candidates that stop before the last rung."""
        outcomes: list[Outcome | None] = [None] * len(asked)
        going = list(range(len(asked)))
        metrics = self._metrics(costs[0])
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
                    values[i] = {**outcome.values, **costs[i].values}
                else:
                    outcomes[i] = outcome
            trials = [asked[i][0] for i in values]
            given = trials, list(values.values()), study.trials, self.objectives
            promoted = self.rungs.promote(rung, *given)
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
