"""A run: a recipe and its stages, each done once."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from hwnas.atomic import storage_errors
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.experiment.finished import goals_of, is_finished, unfinished
from hwnas.plugin import imports_from
from hwnas.progress import Advance, Reporter, make_reporter
from hwnas.recipe import Recipe, read_recipe
from hwnas.run_folder import RunFolder, all_or_nothing
from hwnas.search import RankingCheck
from hwnas.search.training import (
    SupernetTraining,
    TrainingRow,
    load_weights,
    train_supernet,
)
from hwnas.stages.calibrate import calibrate, check_limits, fitted_predictor
from hwnas.stages.finalists import finish
from hwnas.stages.job import Goal, Ingredients, Job
from hwnas.stages.measurements import read_measurements
from hwnas.stages.report import write_results
from hwnas.stages.search import check_shared_study, found, search
from hwnas.stages.summary import Summary, summarise

__all__ = ["Experiment", "resume", "run", "specialise"]


@dataclass(frozen=True)
class Experiment:
    """A recipe that was read, and where it came from.

    Attributes:
        recipe: What to do.
        text: The recipe as TOML, with overrides in place.
        folder: Where relative paths of the recipe start.
    """

    recipe: Recipe
    text: str
    folder: Path

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """Read a recipe.

        Args:
            path: A TOML file.
            overrides: ``"table.key=value"`` each.

        Raises:
            ConfigError: The recipe is wrong; the message says where.
        """
        recipe, text = read_recipe(Path(path), overrides)
        return cls(recipe, text, Path(path).absolute().parent)

    def run(
        self,
        folder: str | Path | None = None,
        reporter: Reporter | None = None,
        ray_address: str | None = None,
    ) -> Summary:
        """Do everything: calibrate, train, search, make bundles, write the report.

        Args:
            folder: The run's folder; ``runs/<name>`` if None. A run that the same recipe began
                there goes on.
            reporter: Who tells the user what happens.
            ray_address: A Ray cluster to work on, ``"auto"`` or ``"HOST:PORT"``; if None, Ray is
                started on this machine for as long as the run takes.

        Returns:
            What was found and where it is.

        Raises:
            HwnasError: See `hwnas.errors`; the run can be resumed after what caused it is mended.
        """
        path = Path(folder) if folder is not None else Path("runs", self.recipe.name)
        goals = [Goal(self.recipe.objective)]
        if (path / "run.json").exists():
            opened = RunFolder.create(path, self.recipe, self.text, self.folder)
            return _continue(opened, goals, reporter, ray_address)[0]
        with imports_from(self.folder):
            with all_or_nothing(path):
                ingredients = Ingredients.prepare(self.recipe, self.folder, path / "cache")
                opened = RunFolder.create(path, self.recipe, self.text, self.folder)
            with opened:
                return _work(opened, ingredients, goals, reporter, ray_address)[0]


def run(
    recipe: str | Path,
    folder: str | Path | None = None,
    overrides: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Summary:
    """Launch a search from a recipe; see `Experiment.run`."""
    return Experiment.load(recipe, overrides).run(folder, reporter)


def resume(
    folder: str | Path, reporter: Reporter | None = None, ray_address: str | None = None
) -> Summary:
    """Go on with a run, and with the targets that were added to it, where they were interrupted.

    Args:
        folder: The run's folder.
        reporter: Who tells the user what happens.
        ray_address: A Ray cluster to work on; see `Experiment.run`.
    """
    opened = RunFolder.open(Path(folder))
    return _continue(opened, goals_of(opened), reporter, ray_address)[0]


def specialise(
    folder: str | Path, targets: Sequence[str], reporter: Reporter | None = None
) -> list[Summary]:
    """Search for further targets with the supernet and the accuracies that a run already has.

    Args:
        folder: A finished run.
        targets: Names of targets, e.g. ``"cpu-onnxruntime-fp32-b8-t1"``.
        reporter: Who tells the user what happens.

    Raises:
        RunError: The run is not finished.
        ConfigError: A target is unknown, or is the run's own.
        InfeasibleError: No network keeps the limits on a target, which then is not added.
    """
    opened = RunFolder.open(Path(folder))
    own = Goal(opened.recipe.objective)
    goals = [Goal.specialised(opened.recipe, target) for target in dict.fromkeys(targets)]
    for goal in goals:
        if goal.target in own.targets:
            raise ConfigError(
                f"{opened.path} was searched for {goal.target} to begin with; give another target"
            )
    if not is_finished(opened, own):
        raise unfinished(opened)
    try:
        return _continue(opened, goals, reporter)
    except InfeasibleError:
        for goal in goals:
            if not is_finished(opened, goal):
                shutil.rmtree(opened.output(goal.target), ignore_errors=True)
        raise


def _continue(
    folder: RunFolder,
    goals: Sequence[Goal],
    reporter: Reporter | None,
    ray_address: str | None = None,
) -> list[Summary]:
    with imports_from(folder.recipe_folder), folder:
        cache = folder.path / "cache"
        ingredients = Ingredients.prepare(folder.recipe, folder.recipe_folder, cache)
        return _work(folder, ingredients, goals, reporter, ray_address)


def _work(
    folder: RunFolder,
    ingredients: Ingredients,
    goals: Sequence[Goal],
    reporter: Reporter | None,
    ray_address: str | None = None,
) -> list[Summary]:
    """All stages of some goals that are not done yet."""
    reporter = reporter or make_reporter()
    reporter.log = folder.path / "log.jsonl"
    job = Job(ingredients, folder, reporter)
    left = [goal for goal in goals if not is_finished(folder, goal)]
    if left:
        check_shared_study(folder.recipe.search)
        with storage_errors(folder.path), _ray(job, ray_address):
            for goal in left:
                _reach(job, goal)
    else:
        reporter.note(f"{folder.path} is finished; nothing is left to do")
    return [summarise(job, goal) for goal in goals]


def _reach(job: Job, goal: Goal) -> None:
    """The stages of one goal, in order."""
    folder, space = job.folder.path, job.ingredients.space
    out = job.folder.output(goal.target)
    out.mkdir(parents=True, exist_ok=True)
    table = out / "measurements.parquet"
    costs = {}
    for target in goal.targets:
        calibrate(job, target, table)
        costs[target] = fitted_predictor(space, target, table)
    check_limits(job, goal, costs)
    weights = _supernet(job) if job.needs_supernet else None
    search(job, goal, weights, costs)
    result = found(folder, goal)
    finish(job, goal, result, weights)
    report_inputs = [result, job.training_hash, job.recipe.deploy, read_measurements(table)]
    job.perform(
        goal.stage("report"),
        report_inputs,
        lambda _: write_results(job, goal),
        lambda: is_finished(job.folder, goal),
    )


def _supernet(job: Job) -> dict[str, Tensor]:
    """The weights of the supernet, trained unless they are there."""
    recipe, i = job.recipe, job.ingredients
    folder = job.folder.path / "supernet"
    run_hash = job.training_hash

    def work(advance: Advance) -> None:
        def on_row(row: TrainingRow) -> None:
            advance(row.share, f"epoch {row.epoch:.1f}, loss {row.loss:.3f}")
            if row.note:
                job.reporter.note(row.note)

        training = SupernetTraining(
            i.space, i.task, i.data, recipe.train, recipe.seed, run_hash, folder
        )
        trained = train_supernet(training, on_row)
        if recipe.train.ranking_check:
            ranked = RankingCheck.of(training)(load_weights(trained))
            job.reporter.note(ranked.summary, ranking=asdict(ranked))

    weights = folder / "weights.safetensors"
    job.perform("train", [run_hash], work, weights.exists)
    return load_weights(weights)


@contextlib.contextmanager
def _ray(job: Job, address: str | None) -> Iterator[None]:
    """Ray, if the recipe asks for workers and there is something left to do."""
    workers = job.recipe.workers
    if address is not None:
        if workers == 0:
            raise ConfigError(
                f"a Ray cluster at {address!r} is to be used, but the recipe has no workers; set "
                "search.workers to the most that may be used"
            )
        from hwnas.search.cluster import connected_ray

        with connected_ray(address, [job.folder.recipe_folder]):
            yield
        return
    if workers == 0:
        yield
        return
    from hwnas.search.cluster import local_ray

    with local_ray(max(workers, os.cpu_count() or 1), [job.folder.recipe_folder]):
        yield
