"""A job whose run is finished."""

from pathlib import Path

import pytest

from hwnas.progress import make_reporter
from hwnas.run_folder import RunFolder
from hwnas.stages import Goal, Ingredients, Job


@pytest.fixture
def job(finished: Path) -> Job:
    folder = RunFolder.open(finished)
    ingredients = Ingredients.prepare(folder.recipe, folder.recipe_folder, finished / "cache")
    return Job(ingredients, folder, make_reporter(quiet=True))


@pytest.fixture
def goal(job: Job) -> Goal:
    return Goal(job.recipe.objective)
