"""Order of the stages of a run."""

from __future__ import annotations

from collections.abc import Iterator

from hwnas.search.objectives.objective import label_on
from hwnas.stages.calibrate import calibration, fitted_predictor
from hwnas.stages.finalists.reference import referencing
from hwnas.stages.finalists.stage import finalising
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage
from hwnas.stages.report import reporting
from hwnas.stages.search import found, searching
from hwnas.stages.strategy import learning, proposing
from hwnas.stages.training import ranking, training

__all__ = ["is_done", "stages_of"]


def is_done(job: Job, goal: SearchGoal) -> bool:
    """Return whether all stages of a goal are done, and confirm them in the record if so."""
    names = []
    for stage in stages_of(job, goal):
        if not job.is_done(stage):
            return False
        names.append(stage.name)
    for name in names:
        job.folder.confirm(name)
    return True


def stages_of(job: Job, goal: SearchGoal) -> Iterator[RunStage]:
    """Yield the stages of a goal in order; each must be done before the next is requested."""
    folder, space, recipe = job.folder.path, job.run_inputs.space, job.recipe
    out = job.folder.output(goal.target)
    costs = {}
    for metric, target in goal.costs:
        yield calibration(job, metric, target, out)
        costs[label_on(metric, target)] = fitted_predictor(space, metric, target, out)
    if job.trains_supernet:
        yield training(job, goal, costs)
    if job.needs_supernet and recipe.train.ranking_check:
        yield ranking(job, job.trained_weights)
    strategy, sampler = job.run_inputs.strategy, job.run_inputs.sampler
    if strategy is not None:
        yield learning(job, goal, strategy, costs)
        sampler = proposing(job, goal)
    weights = job.supernet_weights(goal)
    arrays = None if weights is None else {k: v.numpy() for k, v in weights.items()}
    yield from searching(job, goal, sampler, job.evaluator(arrays, goal), costs)
    result = found(folder, goal)
    yield finalising(job, goal, result, weights)
    if recipe.deploy.reference and goal.target is None:
        yield referencing(job, goal)
    yield reporting(job, goal, result)
