"""A run: a recipe and its stages, each done once."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hwnas.atomic import replacing_folder, storage_errors
from hwnas.deploy.bundle import Bundle
from hwnas.errors import ConfigError, InfeasibleError, RunError, StorageError
from hwnas.plugin import imports_from
from hwnas.progress import Advance, Reporter, make_reporter
from hwnas.recipe import Recipe, read_recipe
from hwnas.run_folder import RunFolder, all_or_nothing
from hwnas.search import RankingCheck, SearchResult
from hwnas.search.training import (
    SupernetTraining,
    TrainingRow,
    load_weights,
    train_supernet,
)
from hwnas.search_spaces import SearchSpace
from hwnas.stages.calibrate import calibrate, check_limits, fitted_predictor
from hwnas.stages.cascade import Cascading, make_cascade
from hwnas.stages.cascade_costs import Saved
from hwnas.stages.finalists import finish
from hwnas.stages.job import Goal, Ingredients, Job
from hwnas.stages.measurements import read_measurements
from hwnas.stages.pick import make_bundle, picked
from hwnas.stages.report import write_results
from hwnas.stages.search import check_shared_study, found, search
from hwnas.stages.summary import Summary, summarise

__all__ = [
    "Experiment",
    "cascade",
    "export",
    "resume",
    "rewrite_reports",
    "run",
    "space_of",
    "specialise",
    "status",
]


_RESULTS = ("measurements.parquet", "bundles")
_ALL_RESULTS = (*_RESULTS, "front.csv", "report.html")


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
    targets = [Goal.specialised(opened.recipe, target) for target in opened.specialised]
    goals = [Goal(opened.recipe.objective), *targets]
    return _continue(opened, goals, reporter, ray_address)[0]


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
        raise _unfinished(opened)
    try:
        return _continue(opened, goals, reporter)
    except InfeasibleError:
        for goal in goals:
            if not is_finished(opened, goal):
                shutil.rmtree(opened.output(goal.target), ignore_errors=True)
        raise


def is_finished(folder: RunFolder, goal: Goal, results: Sequence[str] = _ALL_RESULTS) -> bool:
    """Whether a goal has its report, the last thing that is made, and no result was taken away."""
    out = folder.output(goal.target)
    made = [folder.path / "study.db", *(out / name for name in results)]
    record = folder.stages.get(goal.stage("report"))
    return record is not None and record.state == "done" and all(p.exists() for p in made)


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


def status(folder: str | Path) -> dict[str, Any]:
    """How far a run is: its stages, and how many candidates are evaluated."""
    opened = RunFolder.open(Path(folder))
    goal = Goal(opened.recipe.objective)
    result = SearchResult(goal.objectives, ())
    if (opened.path / "study.db").exists():
        result = found(opened.path, goal)
    return {
        "name": opened.recipe.name,
        "state": "finished" if is_finished(opened, goal) else "unfinished",
        "created": opened.about["created"],
        "stages": opened.about["stages"],
        "trials": result.tried,
        "rungs": [asdict(rung) for rung in result.rungs],
        "failed": [{"candidate": f.candidate.id, **f.failure.to_json()} for f in result.failed],
        "trials_wanted": opened.recipe.search.trials,
        "targets": [*goal.targets, *opened.specialised],
    }


def rewrite_reports(folder: str | Path) -> list[Path]:
    """Write the reports of a run, and of the targets that were added to it, anew.

    Raises:
        RunError: The run is not finished.
    """
    opened = RunFolder.open(Path(folder))
    goals = [Goal(opened.recipe.objective)]
    goals += [Goal.specialised(opened.recipe, target) for target in opened.specialised]
    finished = [goal for goal in goals if is_finished(opened, goal, _RESULTS)]
    if not finished:
        raise _unfinished(opened)
    with imports_from(opened.recipe_folder), opened:
        job = Job.of(opened)
        for goal in finished:
            write_results(job, goal)
    return [opened.output(goal.target) / "report.html" for goal in finished]


def export(
    folder: str | Path,
    out: str | Path,
    pick: str | None = None,
    max_latency_ms: float | None = None,
    target: str | None = None,
) -> Bundle:
    """Copy one winner of a run to a place of its own.

    Args:
        folder: A finished run.
        out: Folder to make.
        pick: ``"knee"`` (the default), ``"fastest"``, ``"most-accurate"`` (the default under a
            latency limit), or the id of any network that the search evaluated; where that is no
            finalist, its bundle is made first.
        max_latency_ms: Choose only among finalists measured to be at most this slow.
        target: A target that the run was specialised for; the run's own if None.

    Raises:
        ConfigError: There is no such pick.
        InfeasibleError: No finalist is fast enough; the message names the fastest.
        RunError: The run is not finished.
        StorageError: ``out`` exists already or cannot be written.
    """
    opened, out = RunFolder.open(Path(folder)), Path(out)
    goal = _finished_goal(opened, target)
    if out.exists():
        raise StorageError(f"{out} exists already; choose another --out")
    with imports_from(opened.recipe_folder), opened:
        job = Job.of(opened)
        source = picked(job, goal, pick, max_latency_ms)
        with replacing_folder(out) as temporary:
            if isinstance(source, Bundle):
                source.verify()
                shutil.copytree(source.folder, temporary, dirs_exist_ok=True)
            else:
                make_bundle(job, goal, source, temporary)
    return Bundle.load(out)


def cascade(
    folder: str | Path,
    target_accuracy: float,
    out: str | Path,
    margin: float = 1.0,
    target: str | None = None,
    saved: Saved = "latency",
) -> Cascading:
    """Pack the two finalists of a run that together reach an accuracy at the lowest cost.

    Nothing is written where a single finalist that reaches it costs as little.

    Args:
        folder: A finished run.
        target_accuracy: To be reached on validation images, in 0..1.
        out: Folder to make.
        margin: By so many standard errors the accuracy has to be above the target.
        target: A target that the run was specialised for; the run's own if None.
        saved: Expected latency or expected energy.

    Raises:
        ConfigError: The networks do not classify, or the target is not one image at a time on ONNX
            Runtime.
        InfeasibleError: Neither a finalist nor a pair reaches it; the message names the best.
        RunError: The run is not finished.
        StorageError: ``out`` exists already or cannot be written.
    """
    opened, out = RunFolder.open(Path(folder)), Path(out)
    goal = _finished_goal(opened, target)
    if out.exists():
        raise StorageError(f"{out} exists already; choose another --out")
    with imports_from(opened.recipe_folder), opened:
        return make_cascade(Job.of(opened), goal, target_accuracy, margin, out, saved)


def space_of(path: str | Path) -> SearchSpace:
    """The search space of a recipe, or of a run.

    Args:
        path: A TOML recipe, or a run's folder.

    Raises:
        ConfigError: It is neither, or the recipe is wrong.
        DataError: The images that decide the size of the networks are missing.
    """
    found = Path(path)
    if found.is_dir():
        opened = RunFolder.open(found)
        recipe, folder = opened.recipe, opened.recipe_folder
    else:
        recipe, folder = read_recipe(found)[0], found.absolute().parent
    with imports_from(folder), tempfile.TemporaryDirectory() as cache:
        return Ingredients.prepare(recipe, folder, Path(cache)).space


def _finished_goal(folder: RunFolder, target: str | None) -> Goal:
    """The run's own goal, or that of a target which was added to it, if it has been reached."""
    goal = Goal(folder.recipe.objective)
    if target is not None:
        goal = Goal.specialised(folder.recipe, target)
    if not is_finished(folder, goal):
        raise _unfinished(folder, target)
    return goal


def _unfinished(folder: RunFolder, target: str | None = None) -> RunError:
    if target is not None:
        return RunError(
            f"{folder.path} has no results for {target}; "
            f"`hwnas specialise {folder.path} --target {target}` makes them"
        )
    return RunError(f"{folder.path} is not finished; `hwnas resume {folder.path}` first")
