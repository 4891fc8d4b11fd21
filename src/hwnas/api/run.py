"""Run as a Python object: its state, its front, its networks and its plots."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from optuna.samplers import BaseSampler
from torch import nn

from hwnas.api.elastic_model import ElasticModel
from hwnas.api.object_names import returning
from hwnas.api.objectives import target_names
from hwnas.api.settings import overrides_of
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.file_formats.device_limits import DeviceLimits, device_limits
from hwnas.deploy.file_formats.file_format import CodeOptions
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.experiment import cascade as make_cascade
from hwnas.experiment import export as export_network
from hwnas.experiment import (
    front_figure,
    picked_network,
    resume,
    rewrite_reports,
    space_of,
    specialise,
    status,
    summaries,
)
from hwnas.given_objects import GivenObjects
from hwnas.progress import Reporter
from hwnas.recipe import Recipe
from hwnas.run_folder import RunFolder
from hwnas.search import Evaluator, ImageData, Task
from hwnas.search_spaces import SearchSpace
from hwnas.stages.deployment.cascade_costs import Saved
from hwnas.stages.deployment.cascade_result import Among, Cascading
from hwnas.stages.results.comparison import Comparison, compare_runs
from hwnas.stages.results.fronts import read_front
from hwnas.stages.results.run_result import FrontRow, RunResult, cells

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

__all__ = ["Front", "Network", "Run", "compare", "export", "open"]


class Front(Sequence[FrontRow]):
    """Networks of the front of a search, and finalists, as rows.

    Args:
        result: Result of the search.
    """

    def __init__(self, result: RunResult) -> None:
        self._result = result

    def __len__(self) -> int:
        return len(self._result.front)

    @overload
    def __getitem__(self, index: int) -> FrontRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[FrontRow, ...]: ...
    def __getitem__(self, index: int | slice) -> FrontRow | tuple[FrontRow, ...]:
        return self._result.front[index]

    def __iter__(self) -> Iterator[FrontRow]:
        return iter(self._result.front)

    def __repr__(self) -> str:
        return f"<Front of {len(self)} networks>"

    def _repr_html_(self) -> str:
        rows = [cells(row, self._result) for row in self]
        head = _html_row("th", rows[0] if rows else ())
        body = "".join(_html_row("td", map(_shown, row.values())) for row in rows)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas table with the columns of ``front.csv``: one row for each network.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("to_frame needs pandas; run: pip install pandas") from error
        rows = [{**cells(row, self._result), **row.architecture} for row in self]
        return pandas.DataFrame(rows)


def _html_row(tag: str, texts: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Network:
    """Network that a run has evaluated.

    Args:
        run: Run of the network.
        id: Id of the network.
        target: Target that the run was specialised for; the run's own if None.
    """

    def __init__(self, run: Run, id: str, target: str | None = None) -> None:
        self.run = run
        self.id = id
        self.target = target

    @property
    def row(self) -> FrontRow | None:
        """Row of the network in the front; None if it is neither on the front nor a finalist."""
        result = self.run.results[self.target]
        rows = [*result.front, *result.references]
        return next((row for row in rows if row.id == self.id), None)

    def export(
        self,
        path: str | Path,
        formats: Sequence[str] = (),
        arena_bytes: int | None = None,
        limits: str | DeviceLimits | None = None,
        name: str | None = None,
        by_rows: bool = False,
        task: str | None = None,
    ) -> Bundle:
        """Write the bundle of this network to a new folder; it is made first if it does not exist.

        Args:
            path: Folder to make.
            formats: Further file formats to convert the network to; see `hwnas.convert`.
            arena_bytes: Most memory for activations in the format ``"c"``; unlimited if None.
            limits: Device that has to be able to read it; see `hwnas.convert`.
            name: Name of the files in the format ``"c"``; see `hwnas.convert`.
            by_rows: Whether code in the format ``"c"`` takes the rows of an image one by one.
            task: Task of a network that does several, of which only the path of this one is
                packed; None for the whole network.

        Raises:
            ConfigError: A format or the task is unknown, a converter is not installed, or an option
                is wrong.
            ArtifactError: A converter refuses the network, or the device cannot read it.
            RunError: The run is stale.
            StorageError: The folder exists already or cannot be written.
        """
        more = formats, arena_bytes, limits, name, by_rows, task
        return export(self.run, path, self.id, None, self.target, *more)

    @property
    def bundle(self) -> Bundle:
        """Bundle of this network in the folder of the run.

        Raises:
            ConfigError: The network is no finalist, so the run has no bundle of it.
        """
        folder = self.run.folder.output(self.target) / "bundles" / self.id
        if not folder.is_dir():
            raise ConfigError(
                f"{self.run.path} has no bundle of {self.id}, which is no finalist; make one with "
                'run.best("ID").export("FOLDER")'
            )
        return Bundle.load(folder)

    def __repr__(self) -> str:
        return f"<Network {self.id} of {self.run.path}>"


class Run:
    """Run of a search.

    Args:
        folder: Folder of the run.
        result: Result of the run's own search, if it is known already.
    """

    def __init__(self, folder: RunFolder, result: RunResult | None = None) -> None:
        self.folder = folder
        self._result = result

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.folder.path

    @property
    def recipe(self) -> Recipe:
        """Settings of the run."""
        return self.folder.recipe

    @property
    def space(self) -> SearchSpace:
        """Search space of the networks; `SearchSpace.architecture` makes one from its choices."""
        return space_of(self.folder)

    @property
    def status(self) -> dict[str, Any]:
        """State of the run, of its stages and of its candidates, as ``hwnas status --json``."""
        return status(self.folder)

    @cached_property
    def results(self) -> Mapping[str | None, RunResult]:
        """Results by target: that of the run's own search for None, and those of added targets.

        Raises:
            RunError: The run is not finished, or is stale.
        """
        return summaries(self.folder)

    @property
    def result(self) -> RunResult:
        """Result of the run's own search."""
        return self.results[None] if self._result is None else self._result

    @property
    def front(self) -> Front:
        """Networks of the front, and finalists; `Front.to_frame` gives a table.

        Of an unfinished run, the networks found so far.

        Raises:
            RunError: The run is stale, or has no finished trial yet.
        """
        if self._result is None and self.status["state"] == "unfinished":
            return Front(read_front(self.path))
        return Front(self.result)

    @property
    def finalists(self) -> tuple[FrontRow, ...]:
        """Networks that have a bundle: fine-tuned, exported, verified and measured."""
        return self.result.finalists

    @property
    def reference(self) -> FrontRow | None:
        """Reference network, which the others are compared with; None without one."""
        return self.result.reference

    @property
    def report(self) -> Path | None:
        """Path of the report as an HTML page; None if it was not written."""
        return self.result.report

    def best(
        self,
        pick: str | None = None,
        *,
        max_latency_ms: float | None = None,
        target: str | None = None,
    ) -> Network:
        """Return one network of the run.

        Args:
            pick: ``"knee"`` (the default), ``"fastest"``, ``"most-accurate"`` (the default under a
                latency limit), ``"reference"``, or the id of any network that was evaluated.
            max_latency_ms: Largest measured latency of the finalists to choose from.
            target: Target that the run was specialised for; the run's own if None.

        Raises:
            ConfigError: There is no such pick.
            InfeasibleError: No finalist is fast enough, or none meets the limits.
            RunError: The run is not finished, or is stale.
        """
        return Network(self, picked_network(self.folder, pick, max_latency_ms, target), target)

    def resume(
        self,
        trials: int | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        reporter: Reporter | None = None,
        ray_address: str | None = None,
    ) -> Run:
        """Continue the run, and return it with its new results.

        Args:
            trials: New number of candidates to evaluate in all.
            settings: Changes to the recipe by dotted key, such as ``{"deploy.top": 5}``, or by the
                name of a table with a config object; ``{"objective": [...]}`` replaces all
                objectives.
            reporter: Reporter of the progress.
            ray_address: Address of a Ray cluster; see `hwnas.search`.

        Raises:
            ConfigError: A setting is wrong; the run is not changed.
            RunError: Another process works on the run.
        """
        changes = {**({} if trials is None else {"search.trials": trials}), **(settings or {})}
        overrides = overrides_of(changes)
        result = resume(self.folder, reporter, ray_address, overrides)
        return Run(RunFolder.open(self.folder), result)

    def specialise(
        self, targets: str | Target | Sequence[str | Target], reporter: Reporter | None = None
    ) -> list[RunResult]:
        """Search for further targets with the weights and accuracies that the run already has.

        Args:
            targets: Targets or their names, such as ``"cpu-onnxruntime-fp32-b8-t1"``.
            reporter: Reporter of the progress.

        Raises:
            ConfigError: A target is unknown, or is the run's own.
            InfeasibleError: No network meets the limits on a target.
            RunError: The run is not finished, or is stale.
        """
        found = specialise(self.folder, target_names(targets), reporter)
        self.__dict__.pop("results", None)
        return found

    def cascade(
        self,
        accuracy: float,
        path: str | Path,
        *,
        margin: float = 1.0,
        target: str | None = None,
        saved: Saved = "latency",
        among: Among = "scored",
        pairs: int = 3,
    ) -> Cascading:
        """Package the two networks that together reach an accuracy at the lowest expected cost.

        Args:
            accuracy: Accuracy to reach on validation images, in 0..1.
            path: Folder to make. Nothing is written if a single network reaches the accuracy at the
                same or a lower cost.
            margin: Number of standard errors by which the accuracy has to be above the target.
            target: Target that the run was specialised for; the run's own if None.
            saved: Cost to save: expected latency or expected energy.
            among: Networks that are paired: the ``"finalists"``, or all that the search
                ``"scored"``, of which a few pairs are fine-tuned and measured.
            pairs: Number of these pairs.

        Raises:
            ConfigError: The networks do not classify, or an argument is out of range.
            InfeasibleError: No network and no pair reaches the accuracy.
            RunError: The run is not finished.
            StorageError: The folder exists already or cannot be written.
        """
        return make_cascade(self.folder, accuracy, path, margin, target, saved, among, pairs)

    def rewrite_report(self) -> Path:
        """Write the report again, and return its path."""
        return rewrite_reports(self.folder)[0]

    def plot(self) -> plotly.graph_objects.Figure:
        """Return a figure of the candidates, their front and the finalists as measured.

        Raises:
            ConfigError: The search has a single objective.
            RunError: The run is not finished, or is stale.
        """
        return front_figure(self.folder)

    def __repr__(self) -> str:
        found = self.status
        return f"<Run {found['name']} in {self.path}: {found['state']}, {found['trials']} trials>"

    def _repr_html_(self) -> str:
        found = self.status
        head = (
            f"<p><b>{found['name']}</b>: {found['state']}, {found['trials']} of "
            f"{found['trials_wanted']} candidates in <code>{html.escape(str(self.path))}</code></p>"
        )
        return head + (self.front._repr_html_() if found["state"] == "finished" else "")


def export(
    run: str | Path | Run,
    path: str | Path,
    pick: str | None = None,
    max_latency_ms: float | None = None,
    target: str | None = None,
    formats: Sequence[str] = (),
    arena_bytes: int | None = None,
    limits: str | DeviceLimits | None = None,
    name: str | None = None,
    by_rows: bool = False,
    task: str | None = None,
) -> Bundle:
    """Copy the bundle of one network of a run to its own folder.

    Args:
        run: Finished run, or its folder.
        path: Folder to make.
        pick: ``"knee"`` (the default), ``"fastest"``, ``"most-accurate"`` (the default under a
            latency limit), or the id of any network that the search evaluated; the bundle of a
            network that is not a finalist is made first.
        max_latency_ms: Largest measured latency of the finalists to choose from.
        target: Target that the run was specialised for; the run's own if None.
        formats: Further file formats to convert the network to; see `hwnas.convert`.
        arena_bytes: Most memory for activations, where a format plans it; unlimited if None.
        limits: Device that has to be able to read one of the ONNX files; see `hwnas.convert`.
        name: Name of the files in the format ``"c"``; see `hwnas.convert`.
        by_rows: Whether code in the format ``"c"`` takes the rows of an image one by one.
        task: Task of a network that does several, of which only the path of this one is packed;
            None for the whole network.

    Raises:
        ConfigError: There is no such pick, format, device or task, or an option is wrong.
        ArtifactError: A converter refuses the network, or it does not fit, or the device cannot
            read it.
        InfeasibleError: No finalist is fast enough; the message names the fastest.
        RunError: The run is not finished.
        StorageError: The folder exists already or cannot be written.
    """
    folder = run.folder if isinstance(run, Run) else run
    device = device_limits(limits)
    more = formats, CodeOptions(arena_bytes, name, by_rows), device, task
    return export_network(folder, path, pick, max_latency_ms, target, *more)


def compare(runs: Sequence[str | Path | Run], target: str | None = None) -> Comparison:
    """Compare the fronts of runs with the same objectives, finished or not.

    Args:
        runs: Runs or their folders, at least two.
        target: Target that all runs were specialised for; their own if None.

    Raises:
        ConfigError: There are fewer than two runs, one is given twice, or their objectives differ.
        InfeasibleError: No network of a run meets the limits.
        RunError: A folder holds no run, no such target or no finished trial.
    """
    folders = [run.path if isinstance(run, Run) else Path(run) for run in runs]
    return compare_runs(folders, target)


def open(
    path: str | Path,
    *,
    data: ImageData | None = None,
    task: Task | Callable[..., Task] | None = None,
    space: SearchSpace | nn.Module | ElasticModel | Callable[..., SearchSpace] | None = None,
    sampler: BaseSampler | Callable[..., BaseSampler] | None = None,
    evaluator: Evaluator | Callable[..., Evaluator] | None = None,
) -> Run:
    """Open an existing run.

    Args:
        path: Folder of the run.
        data: Images, if the run was started with an object that has no name.
        task: Task, likewise.
        space: Space of networks, likewise.
        sampler: Sampler, likewise.
        evaluator: Evaluator, likewise.

    Raises:
        RunError: The folder holds no run, or a damaged one.
    """
    factory = returning(sampler) if isinstance(sampler, BaseSampler) else sampler
    networks = ElasticModel(space) if isinstance(space, nn.Module) else space
    made: Any = evaluator
    if hasattr(made, "evaluate") and not isinstance(made, type):
        made = returning(made)
    objects = GivenObjects(data, task, networks, factory, made)
    return Run(RunFolder.open(path, objects))
