"""Execution of a run: a recipe and its stages, each of which is done once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hwnas.atomic import storage_errors
from hwnas.errors import ConfigError, InfeasibleError, RunError
from hwnas.experiment.finished import is_finished, unfinished
from hwnas.experiment.from_images import DEFAULT_TARGET, recipe_for_images
from hwnas.experiment.planned import planned_as, with_plan
from hwnas.experiment.workers import connected
from hwnas.given_objects import GivenObjects
from hwnas.plugin import imports_from
from hwnas.progress import Reporter, make_reporter
from hwnas.recipe import Recipe, parse_recipe, read_recipe
from hwnas.recipe.keys import parts_of
from hwnas.run_folder import IMAGES, RunFolder, all_or_nothing
from hwnas.search.data.image_archive import holds_arrays, write_npz
from hwnas.stages.goal import SearchGoal, goals_of
from hwnas.stages.images import tell_changed_images
from hwnas.stages.job import Job
from hwnas.stages.older_runs import adopt
from hwnas.stages.order import is_done, stages_of
from hwnas.stages.results.run_result import RunResult, summarise
from hwnas.stages.run_inputs import RunInputs, data_of
from hwnas.stages.search import check_shared_study
from hwnas.stages.staleness import stale_stages, told_stale

__all__ = ["Experiment", "resume", "run", "specialise"]


@dataclass(frozen=True)
class Experiment:
    """Recipe with its text and folder, ready to run.

    Attributes:
        recipe: Settings of the run.
        text: Recipe as TOML, with overrides applied.
        folder: Folder that relative paths of the recipe start from.
        objects: Python objects that stand in for names in the recipe.
        arrays: Images and targets to keep in the folder of the run, as `IMAGES`, by their names in
            an ``.npz`` archive.
    """

    recipe: Recipe
    text: str
    folder: Path
    objects: GivenObjects = field(default_factory=GivenObjects)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """Read a recipe.

        Args:
            path: TOML file.
            overrides: Replaced settings, each as ``"table.key=value"``.

        Raises:
            ConfigError: The recipe is wrong; the message says where.
        """
        recipe, text = read_recipe(Path(path), overrides)
        return cls(recipe, text, Path(path).absolute().parent)

    @classmethod
    def of_images(
        cls,
        images: str | Path,
        minutes: float,
        targets: Sequence[str] = (DEFAULT_TARGET,),
        limit_ms: float | None = None,
        overrides: Sequence[str] = (),
    ) -> Experiment:
        """Make a recipe from images, targets and a budget alone.

        Args:
            images: Folder of images and their targets, or an ``.npz`` archive; see `data_table`.
            minutes: Budget of the whole job, in minutes of wall-clock time.
            targets: Targets of the latency objective; of several, the slowest counts.
            limit_ms: Largest latency of a network on any of the targets; None for no limit.
            overrides: Replaced settings, each as ``"table.key=value"``.

        Raises:
            ConfigError: An argument is wrong; the message says which.
            DataError: The folder has another layout.
        """
        text = recipe_for_images(Path(images), minutes, targets, limit_ms)
        return cls.of_text(text, overrides, str(images))

    @classmethod
    def of_text(cls, text: str, overrides: Sequence[str] = (), where: str = "") -> Experiment:
        """Read the text of a recipe, whose relative paths start from the current folder.

        Args:
            text: Recipe as TOML.
            overrides: Replaced settings, each as ``"table.key=value"``.
            where: Name of the recipe in messages.

        Raises:
            ConfigError: The recipe is wrong; the message says where.
        """
        recipe, text = parse_recipe(text, overrides, where=where)
        return cls(recipe, text, Path.cwd())

    def run(
        self,
        folder: str | Path | None = None,
        reporter: Reporter | None = None,
        ray_address: str | None = None,
    ) -> RunResult:
        """Do all stages: calibrate, train, search, make bundles, write the report.

        Args:
            folder: Folder of the run; ``runs/<name>`` if None. A run of the same recipe in this
                folder is resumed.
            reporter: Reporter of the progress to the user.
            ray_address: Address of a Ray cluster to use, ``"auto"`` or ``"HOST:PORT"``; if None,
                Ray is started on this machine for the duration of the run.

        Returns:
            Results of the run and their paths.

        Raises:
            HwnasError: See `hwnas.errors`; the run can be resumed once the cause is removed.
        """
        begun = time.monotonic()
        path = Path(folder) if folder is not None else Path("runs", self.recipe.name)
        reporter = reporter or make_reporter()
        if (path / "run.json").exists():
            recipe, text = planned_as(self.recipe, path) or (self.recipe, self.text)
            opened = RunFolder.create(path, recipe, text, self.folder, self.objects)
            self._keep_arrays(path)
            goals = [SearchGoal(recipe.objective)]
            return _continue(opened, lambda _: goals, reporter, ray_address)[0]
        with imports_from(self.folder):
            with all_or_nothing(path):
                recipe, text, data = self.recipe, self.text, None
                self._keep_arrays(path)
                if recipe.run.minutes is not None:
                    SearchGoal(recipe.objective).check()
                    data = data_of(recipe, self.folder, self.objects, reporter)
                    recipe, text = with_plan(
                        recipe, text, data, self.folder, path, reporter, self.objects, begun
                    )
                run_inputs = RunInputs.prepare(recipe, self.folder, self.objects, data, reporter)
                opened = RunFolder.create(path, recipe, text, self.folder, self.objects)
            with opened:
                goals = [SearchGoal(recipe.objective)]
                return _work(opened, run_inputs, goals, reporter, ray_address)[0]

    def _keep_arrays(self, path: Path) -> None:
        if not self.arrays:
            return
        path.mkdir(parents=True, exist_ok=True)
        kept = path / IMAGES
        if (path / "run.json").exists() and kept.exists() and not holds_arrays(kept, self.arrays):
            raise RunError(
                f"{path} holds a run on other images; give another name or path, or remove it"
            )
        write_npz(kept, self.arrays)


def run(
    recipe: str | Path,
    folder: str | Path | None = None,
    overrides: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> RunResult:
    """Launch a search from a recipe; see `Experiment.run`."""
    return Experiment.load(recipe, overrides).run(folder, reporter)


def resume(
    folder: str | Path | RunFolder,
    reporter: Reporter | None = None,
    ray_address: str | None = None,
    overrides: Sequence[str] = (),
) -> RunResult:
    """Resume a run, including the targets that were added to it.

    Stages whose inputs have changed since they were done (images, settings, code, weights, the
    machine) are done again, and so are all stages that depend on them.

    Args:
        folder: Folder of the run.
        reporter: Reporter of the progress to the user.
        ray_address: Address of a Ray cluster to use; see `Experiment.run`.
        overrides: Changes to the run's recipe, each as ``"table.key=value"``.

    Raises:
        ConfigError: An override is wrong; the run is not changed.
    """
    opened = RunFolder.open(folder)
    return _continue(
        opened, lambda revised: goals_of(opened, revised), reporter, ray_address, overrides
    )[0]


def specialise(
    folder: str | Path | RunFolder, targets: Sequence[str], reporter: Reporter | None = None
) -> list[RunResult]:
    """Search for further targets with the supernet and the accuracies that a run already has.

    Args:
        folder: Folder of a finished run.
        targets: Names of targets, e.g. ``"cpu-onnxruntime-fp32-b8-t1"``.
        reporter: Reporter of the progress to the user.

    Raises:
        RunError: The run is not finished, or is stale.
        ConfigError: A target is unknown, or is the run's own.
        InfeasibleError: No network meets the limits on a target; that target is not added.
    """
    opened = RunFolder.open(folder)
    own = SearchGoal(opened.recipe.objective)
    goals = [SearchGoal.specialised(opened.recipe, target) for target in dict.fromkeys(targets)]
    for goal in goals:
        if goal.target in own.targets:
            raise ConfigError(
                f"{goal.target} is a target of the search of {opened.path}; give another target"
            )
    if not is_finished(opened, own):
        raise unfinished(opened)
    stale = stale_stages(opened, anywhere=True)
    if own_stale := {name: reasons for name, reasons in stale.items() if parts_of(name)[1] is None}:
        raise RunError(told_stale(opened, own_stale))
    try:
        return _continue(opened, lambda _: goals, reporter)
    except InfeasibleError:
        for goal in goals:
            if not is_finished(opened, goal):
                shutil.rmtree(opened.output(goal.target), ignore_errors=True)
        raise


def _continue(
    folder: RunFolder,
    goals: Callable[[Recipe], Sequence[SearchGoal]],
    reporter: Reporter | None,
    ray_address: str | None = None,
    overrides: Sequence[str] = (),
) -> list[RunResult]:
    reporter = reporter or make_reporter()
    with imports_from(folder.recipe_folder), folder:
        if folder.unnamed:
            adopt(Job.of(folder), goals_of(folder))
        recipe, text = folder.revised(overrides)
        run_inputs = RunInputs.prepare(
            recipe, folder.recipe_folder, folder.objects, reporter=reporter
        )
        wanted = goals(recipe)
        for goal in wanted:
            run_inputs.check_goal(goal)
        folder.revise(recipe, text if overrides else None)
        return _work(folder, run_inputs, wanted, reporter, ray_address)


def _work(
    folder: RunFolder,
    run_inputs: RunInputs,
    goals: Sequence[SearchGoal],
    reporter: Reporter,
    ray_address: str | None = None,
) -> list[RunResult]:
    """Do all stages of some goals that are not done with the current inputs; return the results."""
    reporter.log = folder.path / "log.jsonl"
    job = Job(run_inputs, folder, reporter)
    left = [goal for goal in goals if not is_done(job, goal)]
    if left:
        check_shared_study(folder.recipe.search)
        tell_changed_images(job)
        with storage_errors(folder.path), connected(job, ray_address):
            for goal in left:
                (folder.output(goal.target)).mkdir(parents=True, exist_ok=True)
                for stage in stages_of(job, goal):
                    job.perform(stage)
    else:
        reporter.note(f"{folder.path} is finished; nothing is left to do")
    return [summarise(job, goal) for goal in goals]
