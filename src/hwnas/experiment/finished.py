"""Status, reports, exports and cascades of an existing run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.atomic import replacing_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.converting import checked_formats, convert_bundle
from hwnas.deploy.bundles.sealed import give_usual_modes
from hwnas.deploy.file_formats.device_limits import DeviceLimits
from hwnas.deploy.file_formats.file_format import CodeOptions
from hwnas.errors import ConfigError, RunError, StorageError
from hwnas.given_objects import GivenObjects, unnamed_parts
from hwnas.plugin import imports_from
from hwnas.recipe import read_recipe
from hwnas.report.front import pareto_front
from hwnas.run_folder import RunFolder
from hwnas.search import Scored, SearchResult
from hwnas.search_spaces import SearchSpace
from hwnas.stages.deployment.cascade import make_cascade
from hwnas.stages.deployment.cascade_costs import Saved
from hwnas.stages.deployment.cascade_result import Among, CascadeSettings, Cascading
from hwnas.stages.finalists.pick import make_bundle, picked
from hwnas.stages.finalists.task_export import check_task_path, export_task
from hwnas.stages.goal import SearchGoal, goals_of
from hwnas.stages.job import Job
from hwnas.stages.report import gather, write_results
from hwnas.stages.results.run_result import RunResult, summarise
from hwnas.stages.run_inputs import RunInputs
from hwnas.stages.search import found
from hwnas.stages.split_evaluator import check_on_test_images
from hwnas.stages.staleness import stale_stages
from hwnas.stages.trusted_jobs import trusted_job

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = [
    "cascade",
    "export",
    "front_figure",
    "is_finished",
    "picked_network",
    "rewrite_reports",
    "space_of",
    "status",
    "summaries",
    "unfinished",
]

_RESULTS = ("measurements.parquet", "bundles")
_ALL_RESULTS = (*_RESULTS, "front.csv", "report.html")


def status(folder: str | Path | RunFolder) -> dict[str, Any]:
    """Return the state of a run: its stages, the stale ones, and the number of evaluated networks.

    The stages under ``unnamed`` were done by an older hwnas; only `resume` can tell whether they
    are stale. ``objects`` are the parts that only a Python program can give (`hwnas.open`).
    """
    opened = RunFolder.open(folder)
    goal = SearchGoal(opened.recipe.objective)
    result = SearchResult(goal.objectives, ())
    stale = stale_stages(opened)
    if (opened.path / "study.db").exists() and goal.stage("search") not in stale:
        # A search for other objectives may have been interrupted before its study was made.
        begun = opened.stages.get(goal.stage("search"))
        unmade = begun is not None and begun.state == "running"
        with contextlib.suppress(*((RunError,) if unmade else ())):
            result = found(opened.path, goal)
    state = "finished" if is_finished(opened, goal) else "unfinished"
    return {
        "name": opened.recipe.name,
        "state": "stale" if stale and state == "finished" else state,
        "stale": {name: list(reasons) for name, reasons in stale.items()},
        "unnamed": opened.unnamed,
        "objects": unnamed_parts(opened.recipe),
        "created": opened.about["created"],
        "stages": opened.about["stages"],
        "trials": result.tried,
        "rungs": [asdict(rung) for rung in result.rungs],
        "failed": [{"candidate": f.candidate.id, **f.failure.to_json()} for f in result.failed],
        "trials_wanted": opened.recipe.search.trials,
        "targets": [*goal.targets, *opened.specialised],
    }


def rewrite_reports(folder: str | Path | RunFolder) -> list[Path]:
    """Rewrite the reports of a run and of the targets that were added to it.

    Raises:
        RunError: The run is not finished, or is stale.
    """
    opened = RunFolder.open(folder)
    finished = [goal for goal in goals_of(opened) if is_finished(opened, goal, _RESULTS)]
    if not finished:
        raise unfinished(opened)
    with trusted_job(opened) as job:
        for goal in finished:
            write_results(job, goal)
    return [opened.output(goal.target) / "report.html" for goal in finished]


def export(
    folder: str | Path | RunFolder,
    out: str | Path,
    pick: str | None = None,
    max_latency_ms: float | None = None,
    target: str | None = None,
    formats: Sequence[str] = (),
    code: CodeOptions | None = None,
    limits: DeviceLimits | None = None,
    task: str | None = None,
) -> Bundle:
    """Copy the bundle of one network of a run to its own folder.

    Args:
        folder: Folder of a finished run.
        out: Folder to make.
        pick: ``"knee"`` (the default), ``"fastest"``, ``"most-accurate"`` (the default under a
            latency limit), or the id of any network that the search evaluated; the bundle of a
            network that is not a finalist is made first.
        max_latency_ms: Largest measured latency of the finalists to choose from.
        target: Target that the run was specialised for; the run's own if None.
        formats: Further file formats to convert the network to; see `hwnas.convert`.
        code: Options of formats that are programs; the defaults if None.
        limits: Limits of a device that has to be able to read one of the ONNX files; None for none.
        task: Task of a network that does several, of which only the path of this one is packed;
            None for the whole network.

    Raises:
        ConfigError: There is no such pick, format or task.
        ArtifactError: A converter refuses the network, or it does not fit, or the device cannot
            read it.
        InfeasibleError: No finalist is fast enough; the message names the fastest.
        RunError: The run is not finished.
        StorageError: ``out`` exists already or cannot be written.
    """
    out = Path(out)
    _check_absent(out)
    checked_formats(formats, code=code)  # before minutes of training
    with _finished_job(folder, target) as (job, goal):
        if task is not None:
            check_task_path(job.run_inputs, task)
        source = picked(job, goal, pick, max_latency_ms)
        with replacing_folder(out) as temporary:
            if task is None:
                _put_network(job, goal, source, temporary)
            else:
                _put_path(job, goal, source, task, temporary)
            if formats or limits is not None:
                made = Bundle.load(temporary)
                check = None
                if task is None:
                    inputs = job.run_inputs
                    check = check_on_test_images(inputs.task, inputs.data, made)
                convert_bundle(made, formats, code=code, limits=limits, check=check)
    return Bundle.load(out)


def _put_network(job: Job, goal: SearchGoal, source: Bundle | Scored, folder: Path) -> None:
    """Copy a bundle into a folder; make the one of a network that has none."""
    if not isinstance(source, Bundle):
        make_bundle(job, goal, source, folder)
        return
    source.verify()
    shutil.copytree(source.folder, folder, dirs_exist_ok=True)
    give_usual_modes(folder)


def _put_path(job: Job, goal: SearchGoal, source: Bundle | Scored, task: str, folder: Path) -> None:
    """Write the bundle of one task's path through a network into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if not isinstance(source, Bundle):
            (work / "network").mkdir()
            make_bundle(job, goal, source, work / "network")
            source = Bundle.load(work / "network")
        source.verify()
        made = export_task(job, source, task, work / "path")
        shutil.copytree(made.folder, folder, dirs_exist_ok=True)
        give_usual_modes(folder)


def picked_network(
    folder: str | Path | RunFolder,
    pick: str | None = None,
    max_latency_ms: float | None = None,
    target: str | None = None,
) -> str:
    """Return the id of one network of a run; arguments and errors as in `export`."""
    with _finished_job(folder, target) as (job, goal):
        found = picked(job, goal, pick, max_latency_ms)
        return found.description["id"] if isinstance(found, Bundle) else found.candidate.id


def summaries(folder: str | Path | RunFolder) -> dict[str | None, RunResult]:
    """Return the results of a run by target; None stands for the run's own search.

    Raises:
        RunError: The run is not finished, or is stale.
    """
    with _finished_job(folder, None) as (job, _):
        finished = [goal for goal in goals_of(job.folder) if is_finished(job.folder, goal)]
        return {goal.target: summarise(job, goal) for goal in finished}


def front_figure(folder: str | Path | RunFolder) -> go.Figure:
    """Return the figure of a run's candidates and their front, as in its report.

    Raises:
        ConfigError: The search has a single objective.
        RunError: The run is not finished, or is stale.
    """
    with _finished_job(folder, None) as (job, goal):
        if len(goal.objectives) < 2:
            raise ConfigError(
                f"{job.folder.path} has one objective, so there is no front to plot; see its report"
            )
        return pareto_front(gather(job, goal, summarise(job, goal)))


def cascade(
    folder: str | Path | RunFolder,
    target_accuracy: float,
    out: str | Path,
    margin: float = 1.0,
    target: str | None = None,
    saved: Saved = "latency",
    among: Among = "scored",
    pairs: int = 3,
) -> Cascading:
    """Package the two networks of a run that together reach an accuracy at the lowest cost.

    Nothing is written if a single network reaches the accuracy at the same or a lower cost.

    Args:
        folder: Folder of a finished run.
        target_accuracy: Accuracy to reach on validation images, in 0..1.
        out: Folder to make.
        margin: Number of standard errors by which the accuracy has to be above the target.
        target: Target that the run was specialised for; the run's own if None.
        saved: Cost to save: expected latency or expected energy.
        among: Networks that are paired: the ``"finalists"``, or all that the search ``"scored"``,
            of which a few pairs are fine-tuned and measured.
        pairs: Number of these pairs.

    Raises:
        ConfigError: The networks do not classify, the target is not one image at a time on ONNX
            Runtime, or an argument is out of range.
        InfeasibleError: No network and no pair reaches the accuracy; the message names the best.
        RunError: The run is not finished.
        StorageError: ``out`` exists already or cannot be written.
    """
    settings = CascadeSettings(target_accuracy, margin, saved, among, pairs)
    _check_absent(Path(out))
    with _finished_job(folder, target) as (job, goal):
        return make_cascade(job, goal, settings, Path(out))


def space_of(path: str | Path | RunFolder) -> SearchSpace:
    """Return the search space of a recipe or of a run.

    Args:
        path: TOML recipe, or a run.

    Raises:
        ConfigError: The path is neither, or the recipe is wrong.
        DataError: The images that decide the size of the networks are missing.
    """
    objects = GivenObjects()
    if isinstance(path, RunFolder) or Path(path).is_dir():
        opened = RunFolder.open(path)
        recipe, folder, objects = opened.recipe, opened.recipe_folder, opened.objects
    else:
        recipe, folder = read_recipe(Path(path))[0], Path(path).absolute().parent
    with imports_from(folder):
        return RunInputs.prepare(recipe, folder, objects).space


def is_finished(folder: RunFolder, goal: SearchGoal, results: Sequence[str] = _ALL_RESULTS) -> bool:
    """Return whether the last stage of a goal, its report, is done and all results still exist."""
    out = folder.output(goal.target)
    made = [folder.path / "study.db", *(out / name for name in results)]
    record = folder.stages.get(goal.stage("report"))
    return record is not None and record.state == "done" and all(p.exists() for p in made)


def unfinished(folder: RunFolder, target: str | None = None) -> RunError:
    """Return the error that says that a run, or its search for a target, is not finished."""
    if target is not None:
        return RunError(
            f"{folder.path} has no results for {target}; "
            f"create them with `hwnas specialise {folder.path} --target {target}`"
        )
    return RunError(f"{folder.path} is not finished; run `hwnas resume {folder.path}` first")


@contextlib.contextmanager
def _finished_job(
    folder: str | Path | RunFolder, target: str | None
) -> Iterator[tuple[Job, SearchGoal]]:
    """Yield the job of a finished run, and its own goal or that of an added target."""
    opened = RunFolder.open(folder)
    goal = SearchGoal(opened.recipe.objective)
    if target is not None:
        goal = SearchGoal.specialised(opened.recipe, target)
    if not is_finished(opened, goal):
        raise unfinished(opened, target)
    with trusted_job(opened) as job:
        yield job, goal


def _check_absent(out: Path) -> None:
    if out.exists():
        raise StorageError(f"{out} exists already; choose another --out")
