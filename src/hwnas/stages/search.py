"""Search stage of a run's own goal or of a target that was added to it."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optuna.samplers import BaseSampler

from hwnas.errors import InfeasibleError
from hwnas.predictors import CostSource
from hwnas.progress import ProgressCallback, Reporter
from hwnas.recipe import SearchConfig
from hwnas.recipe.keys import RecipeStage
from hwnas.search import (
    Executor,
    InProcess,
    RayActors,
    Scored,
    ScoreStore,
    SearchCallbacks,
    SearchOptions,
    SearchResult,
    StudyStorage,
    run_search,
)
from hwnas.search.engine.devices import device_here
from hwnas.search.engine.failure import Outcome
from hwnas.search.engine.placement import live_nodes
from hwnas.search.engine.result import (
    FailedTrial,
    evaluated_candidates,
    failed_trials,
    scored_trials,
)
from hwnas.search.engine.rungs import rung_counts
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers import from_optuna, make_sampler
from hwnas.search.samplers.stratified import Stratified
from hwnas.search.study.search_study import SearchStudy
from hwnas.search.study.shared_study import Sharing
from hwnas.search.study.storage import close_storage, open_storage
from hwnas.search.study.study_file import StudyFile
from hwnas.search.study.trial_identity import IDENTITY, TrialIdentity
from hwnas.search_spaces import Architecture, Candidate, SearchSpace
from hwnas.search_spaces.space.precision import as_trained
from hwnas.stages.calibrate import check_limits
from hwnas.stages.finalists.reference import with_reference
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage

__all__ = ["BASELINE", "check_shared_study", "found", "searching"]

BASELINE = "random"
_WITHOUT_ENDS = (from_optuna.random, Stratified)
"""Samplers that do not start with the smallest and the largest network of the space."""


def searching(
    job: Job,
    goal: SearchGoal,
    sampler: Callable[..., BaseSampler],
    evaluator: Evaluator,
    costs: Mapping[str, CostSource],
) -> Iterator[RunStage]:
    """Yield the search stage of a goal, and a random search if the recipe asks for it."""
    config = job.recipe.search

    def stage(name: RecipeStage, study_name: str, sampler: Callable[..., BaseSampler]) -> RunStage:
        def work(advance: ProgressCallback) -> None:
            check_limits(job, goal, costs)
            _mark_stale(job.folder.path / "study.db", study_name, goal, trials)
            ignored = (InfeasibleError,) if study_name == BASELINE else ()
            with _executor(evaluator, config) as executor, contextlib.suppress(*ignored):
                _search(job, goal, executor, costs, study_name, sampler, advance)

        def adopt() -> None:
            # "supernet" and "grow" recalibrated on other images in an older hwnas: their trials
            # are evaluated again when the search is extended.
            if job.recipe.search.evaluator not in ("supernet", "grow"):
                _adopt_trials(job.folder.path / "study.db", study_name, goal, trials)
            if job.lineage is not None:
                job.lineage.adopt()

        trials = _trial_identity(job, goal, evaluator, costs)
        # The identity has the objectives of the recipe already, under its key of that name.
        inputs = {k: v for k, v in trials.shared.items() if k != "objectives"} | job.learned
        identity = job.identity(name, **inputs)
        return RunStage(
            goal.stage(name),
            identity,
            work,
            lambda: _is_there(job, goal, study_name),
            adopt,
            [name for name in inputs if name.startswith("costs@")],
        )

    search = stage("search", goal.study_name, sampler)
    yield with_reference(job, goal, search)
    if config.random_baseline and goal.target is None:
        yield stage("random-baseline", BASELINE, from_optuna.random)


def _trial_identity(
    job: Job, goal: SearchGoal, evaluator: Evaluator, costs: Mapping[str, CostSource]
) -> TrialIdentity:
    return TrialIdentity.of(
        goal.space(job.run_inputs.searched),
        goal.objectives,
        evaluator,
        job.fidelity,
        job.recipe.search.fidelity,
        costs,
    )


def _mark_stale(path: Path, study_name: str, goal: SearchGoal, identity: TrialIdentity) -> None:
    """Mark stale trials before workers start, since the process may be killed while they start."""
    if path.exists():
        SearchStudy(study_name, goal.objectives, _no_sampler, path, identity=identity).close()


def _no_sampler(known: int) -> BaseSampler:
    """Return a sampler for a study that is not asked for trials."""
    return make_sampler("random", 0, {})


def _adopt_trials(path: Path, study_name: str, goal: SearchGoal, identity: TrialIdentity) -> None:
    """Record an identity in trials of an older hwnas, which have none."""
    file = StudyFile(path, study_name, goal.objectives)
    with contextlib.closing(file):
        unknown = [t._trial_id for t in file.trials() if IDENTITY not in t.user_attrs]
        file.set_attribute(IDENTITY, dict.fromkeys(unknown, identity.to_json()))


def check_shared_study(config: SearchConfig) -> None:
    """Open the shared storage of a recipe, if there is one, before any training.

    Raises:
        ConfigError: Its address is wrong.
        StorageError: The storage does not answer, or refuses the connection.
    """
    if config.storage is not None:
        close_storage(open_storage(config.storage))


def _is_there(job: Job, goal: SearchGoal, study_name: str) -> bool:
    folder = job.folder.path
    return (folder / "study.db").exists() and bool(found(folder, goal, study_name).trials)


def _search(
    job: Job,
    goal: SearchGoal,
    executor: Executor,
    costs: Mapping[str, CostSource],
    study_name: str,
    sampler: Callable[..., BaseSampler],
    advance: ProgressCallback,
) -> None:
    config, folder = job.recipe.search, job.folder.path
    space = goal.space(job.run_inputs.searched)
    trials, patience = config.trials, config.patience
    if study_name == BASELINE and patience is not None:  # as many trials as the search had
        trials, patience = found(folder, goal).tried, None
    learned = job.run_inputs.strategy is not None
    first: tuple[Architecture, ...] = ()
    if sampler is Stratified and goal.target is not None:
        first = _trained_before(job, space)
        trials = len(first) or trials
    elif not learned and sampler not in _WITHOUT_ENDS:
        first = space.smallest(), space.largest()
    options = SearchOptions(
        trials,
        sampler,
        {} if learned or study_name == BASELINE else config.options,
        job.recipe.seed,
        config.batch,
        job.fidelity,
        config.fidelity,
        first=first,
        retries=config.retries,
        patience=patience,
    )
    storage = StudyStorage(
        folder / "study.db",
        study_name,
        _sharing(job, study_name),
        ScoreStore(folder / "scores.jsonl"),
    )
    progress = _SearchProgress(config, goal.objectives[0], job.reporter, advance)
    result = run_search(
        space,
        goal.objectives,
        executor,
        options,
        costs=costs,
        storage=storage,
        callbacks=SearchCallbacks(progress.on_trial, progress.on_failure, progress.on_evaluation),
    )
    if patience is not None and result.tried < trials:
        job.reporter.note(
            f"the search ended after {result.tried} of {trials} trials; "
            f"search.patience is {patience}"
        )


def _trained_before(job: Job, space: SearchSpace) -> tuple[Architecture, ...]:
    """Return the networks that the run's own search has trained, as points of a space.

    They were spread over a cost. On a further target, others would be spread a little more evenly,
    but would have to be trained.
    """
    own = SearchGoal(job.recipe.objective)
    study = SearchStudy(own.study_name, own.objectives, _no_sampler, job.folder.path / "study.db")
    with contextlib.closing(study):
        trained = dict.fromkeys(map(as_trained, evaluated_candidates(study)))
    return tuple(space.point(candidate) for candidate in trained)


@dataclass
class _SearchProgress:
    """Progress of a search, by its trials or, with several rungs, by the cost of its evaluations.

    Attributes:
        config: Settings of the search.
        first: First objective, whose best value is shown.
        reporter: Reporter of failures.
        advance: Callback for the progress.
        best: Best value of the first objective so far.
        failures: Number of candidates that failed so far.
        reached: Share of the full cost at which each candidate was evaluated last, by its id.
    """

    config: SearchConfig
    first: Objective
    reporter: Reporter
    advance: ProgressCallback
    best: float | None = None
    failures: int = 0
    reached: dict[str, float] = field(default_factory=dict)

    def on_evaluation(self, candidate: Candidate, fidelity: Fidelity, outcome: Outcome) -> None:
        """Report an evaluation on one of several rungs."""
        if not self._rungs or not isinstance(outcome, Evaluation):
            return
        self.reached[candidate.id] = fidelity.share
        value = outcome.values.get(self.first.label)
        shown = "" if value is None else f", {self.first.label} {value:.4g}"
        self.advance(self._spent, f"{candidate.id} at {fidelity.share:.0%}{shown}")

    def on_trial(self, trial: Scored, complete: int) -> None:
        """Report a finished trial."""
        value, first = trial.values[self.first.label], self.first
        if self.best is None or first.loss(value) < first.loss(self.best):
            self.best = value
        detail = f"trial {complete}/{self.config.trials}, best {first.label} {self.best:.4g}"
        share = self._spent if self._rungs else min(1.0, complete / self.config.trials)
        self.advance(share, detail + (f", {self.failures} failed" if self.failures else ""))

    def on_failure(self, failed: FailedTrial) -> None:
        """Report a failed trial."""
        self.failures += 1
        why = failed.failure
        self.reporter.note(
            f"candidate {failed.candidate.id} {why.kind} (tries: {why.attempts}): {why.reason}",
            failure=why.to_json(),
            trace=why.trace,
        )

    @property
    def _rungs(self) -> bool:
        return len(self.config.fidelity.rungs) > 1

    @property
    def _spent(self) -> float:
        """Share of the cost of all evaluations that is spent."""
        whole = self.config.fidelity.cost(self.config.trials)
        return min(1.0, sum(self.reached.values()) / whole)


def _sharing(job: Job, study_name: str) -> Sharing | None:
    """Return the study that runs of this recipe share, if the recipe names a storage for it."""
    if job.recipe.search.storage is None:
        return None
    # The folder is locked, so no other process on this machine has the name.
    place = f"{uuid.getnode():x} {socket.gethostname()} {job.folder.path.absolute()}"
    driver = hashlib.sha256(place.encode()).hexdigest()[:12]
    return Sharing(job.recipe.search.storage, f"{job.recipe.name}/{study_name}", driver)


@contextlib.contextmanager
def _executor(evaluator: Evaluator, config: SearchConfig) -> Iterator[Executor]:
    executor: Executor
    if config.workers:
        each = config.worker_resources(live_nodes())
        executor = RayActors(evaluator, config.workers, each.cpus, each.gpus, config.timeout_s)
    else:
        executor = InProcess(evaluator, device_here(config.gpus_per_worker))
    try:
        yield executor
    finally:
        executor.close()


def found(folder: Path, goal: SearchGoal, study_name: str | None = None) -> SearchResult:
    """Return the current result of the search of a goal."""
    study = SearchStudy(
        study_name or goal.study_name,
        goal.objectives,
        _no_sampler,
        folder / "study.db",
    )
    trials, failed = scored_trials(study, goal.objectives), failed_trials(study)
    rungs = rung_counts(study.trials)
    study.close()
    return SearchResult(goal.objectives, trials, failed=failed, rungs=rungs)
