"""The search stage: of a run's own goal or of a target that was added to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from hwnas.errors import InfeasibleError
from hwnas.predictors import CostSource
from hwnas.progress import Advance
from hwnas.search import (
    Executor,
    InProcess,
    RayActors,
    Scored,
    ScoreStore,
    SearchResult,
    run_search,
)
from hwnas.search.engine import scored_trials
from hwnas.search.evaluate import Evaluator
from hwnas.search.samplers import make_sampler
from hwnas.search.study import SearchStudy
from hwnas.stages.job import Goal, Job

__all__ = ["BASELINE", "found", "search"]

BASELINE = "random"


def search(
    job: Job, goal: Goal, weights: Mapping[str, Tensor] | None, costs: Mapping[str, CostSource]
) -> None:
    """Search, unless that is done; and at random too, where the recipe wants the comparison."""
    config = job.recipe.search
    arrays = None if weights is None else {k: v.numpy() for k, v in weights.items()}
    evaluator = job.evaluator(arrays)
    inputs = [evaluator.key, goal, config, costs, job.recipe.seed]

    def work(advance: Advance) -> None:
        with _executor(evaluator, config.workers) as executor:
            _search(job, goal, executor, costs, goal.study_name, config.sampler, advance)

    job.perform(goal.stage("search"), inputs, work, lambda: _is_there(job, goal))
    if not config.random_baseline or goal.target is not None:
        return

    def baseline(advance: Advance) -> None:
        with _executor(evaluator, config.workers) as executor, contextlib.suppress(InfeasibleError):
            _search(job, goal, executor, costs, BASELINE, "random", advance)

    job.perform("random-baseline", inputs, baseline, lambda: _is_there(job, goal, BASELINE))


def _is_there(job: Job, goal: Goal, study_name: str | None = None) -> bool:
    folder = job.folder.path
    return (folder / "study.db").exists() and bool(found(folder, goal, study_name).trials)


def _search(
    job: Job,
    goal: Goal,
    executor: Executor,
    costs: Mapping[str, CostSource],
    study_name: str,
    sampler: str,
    advance: Advance,
) -> None:
    config, space, folder = job.recipe.search, job.ingredients.searched, job.folder.path
    first = goal.objectives[0]
    best: float | None = None

    def on_trial(trial: Scored, complete: int) -> None:
        nonlocal best
        value = trial.values[first.label]
        if best is None or first.loss(value) < first.loss(best):
            best = value
        detail = f"trial {complete}/{config.trials}, best {first.label} {best:.4g}"
        advance(complete / config.trials, detail)

    run_search(
        space,
        goal.objectives,
        executor,
        costs,
        config.trials,
        sampler,
        sampler_options=config.options if sampler == config.sampler else {},
        seed=job.recipe.seed,
        batch=config.batch,
        fidelity=job.fidelity,
        study=folder / "study.db",
        study_name=study_name,
        scores=ScoreStore(folder / "scores.jsonl"),
        first=() if sampler == "random" else (space.smallest(), space.largest()),
        on_trial=on_trial,
    )


@contextlib.contextmanager
def _executor(evaluator: Evaluator, workers: int) -> Iterator[Executor]:
    executor: Executor = InProcess(evaluator) if workers == 0 else RayActors(evaluator, workers)
    try:
        yield executor
    finally:
        executor.close()


def found(folder: Path, goal: Goal, study_name: str | None = None) -> SearchResult:
    """What the search of a goal has found so far."""
    study = SearchStudy(
        study_name or goal.study_name,
        goal.objectives,
        lambda known: make_sampler("random", 0, {}),
        folder / "study.db",
    )
    trials = scored_trials(study, goal.objectives)
    study.close()
    return SearchResult(goal.objectives, trials)
