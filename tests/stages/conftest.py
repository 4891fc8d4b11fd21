"""Fixtures: the job of a finished run, and its goal."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.progress import make_reporter
from hwnas.run_folder import RunFolder
from hwnas.stages import Job, RunInputs, SearchGoal


@pytest.fixture
def job(finished: Path) -> Job:
    folder = RunFolder.open(finished)
    run_inputs = RunInputs.prepare(folder.recipe, folder.recipe_folder)
    return Job(run_inputs, folder, make_reporter(quiet=True))


@pytest.fixture
def goal(job: Job) -> SearchGoal:
    return SearchGoal(job.recipe.objective)


@pytest.fixture
def limited(goal: SearchGoal) -> Callable[..., SearchGoal]:
    """Return a function that adds limits to the goal: the worst acceptable value by metric."""

    def with_limits(**limits: float) -> SearchGoal:
        objectives = tuple(replace(o, limit=limits.get(o.metric)) for o in goal.objectives)
        return replace(goal, objectives=objectives)

    return with_limits
