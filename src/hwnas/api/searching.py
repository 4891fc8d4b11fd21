"""Launch of a search from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hwnas.api.images import Data
from hwnas.api.recipes import (
    GivenEvaluator,
    GivenSampler,
    GivenSpace,
    GivenStrategy,
    GivenTask,
    SearchDescription,
)
from hwnas.api.run import Run
from hwnas.api.settings import overrides_of
from hwnas.experiment import Experiment
from hwnas.progress import Reporter
from hwnas.run_folder import RunFolder
from hwnas.search import Objective, TrainConfig

__all__ = ["run_described", "search", "search_recipe"]


def search(
    data: Data,
    *,
    objectives: Sequence[Objective] | None = None,
    space: GivenSpace | Sequence[GivenSpace] | None = None,
    task: GivenTask | None = None,
    training: TrainConfig | None = None,
    minutes: float | None = None,
    sampler: GivenSampler | None = None,
    strategy: GivenStrategy | None = None,
    evaluator: GivenEvaluator | None = None,
    trials: int | None = None,
    seed: int = 0,
    name: str | None = None,
    path: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    ray_address: str | None = None,
) -> Run:
    """Search for the best networks for a task, a device and a budget.

    The search calibrates a predictor of the costs, trains, evaluates candidates, and turns the best
    into verified and measured bundles. What it does is written as a recipe into the run's folder,
    so ``hwnas resume`` continues it from the command line. An object without a name by which
    another process can import it has to be given again, to `hwnas.open`.

    Args:
        data: Images: a folder with a subfolder for each class; an ``.npz`` file; a tuple of arrays
            ``(images, labels)``, uint8 (N, H, W) or (N, H, W, C) and int (N,); a mapping of
            ``x_train``, ``y_train``, ``x_test`` and ``y_test``; a ``torch.utils.data.Dataset``, or
            a mapping of ``train`` and ``test`` to one; an `hwnas.ImageData`, or a function that
            returns one; an `hwnas.DataConfig`; or a ``data.source`` of a recipe, such as
            ``"digits"``.
        objectives: Objectives and limits, from `hwnas.maximize` and `hwnas.minimize`; by default
            the task's first metric, and latency on one core of this machine.
        space: Space of `hwnas.spaces`, its name, a `SearchSpace`, a ``torch.nn.Module`` to make
            elastic, or a factory. A list holds a space of networks and further roles, such as
            `hwnas.spaces.TrainingSettings`.
        task: Task of `hwnas.tasks`, its name, a `Task`, or a factory; if None, the one that the
            targets of the images suggest.
        training: Settings of the training. With ``minutes``, those that it does not give are
            planned, and all of them if it is None.
        minutes: Time budget of the whole job, in minutes, at least 3. What the other arguments
            leave open is planned for it.
        sampler: Sampler of `hwnas.samplers`, its name, a sampler of Optuna, or a factory.
        strategy: Strategy of `hwnas.strategies`, its name, or a class of your own; it learns what
            to propose while the supernet is trained, in place of a sampler.
        evaluator: ``"supernet"``, ``"train"``, ``"grow"``, an `Evaluator`, or a factory.
        trials: Number of candidates to evaluate.
        seed: Seed of all random numbers.
        name: Name of the run; that of the images if None.
        path: Folder of the run; ``runs/<name>`` if None. An unfinished run of the same search in
            this folder is continued.
        settings: Further settings of the recipe by dotted key, such as ``{"search.workers": 0}``,
            or by the name of a table with a config object, such as
            ``{"deploy": hwnas.DeployConfig(top=5)}``, of which the fields that were given count.
        reporter: Reporter of the progress; the standard error if None.
        ray_address: Address of a Ray cluster, ``"auto"`` or ``"HOST:PORT"``; if None, Ray is
            started on this machine for the duration of the run.

    Returns:
        The run, with its front, its networks and its report.

    Raises:
        HwnasError: See `hwnas.errors`. A `ConfigError` or `DataError` of the arguments is raised
            before any training; after other errors the run can be resumed.
    """
    folder = None if path is None else Path(path)
    described = SearchDescription(
        data,
        objectives,
        space,
        task,
        training,
        minutes,
        sampler,
        strategy,
        evaluator,
        trials,
        seed,
        name,
        settings,
    )
    return run_described(described.experiment(folder), folder, reporter, ray_address)


def search_recipe(
    recipe: str | Path,
    *,
    path: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    ray_address: str | None = None,
) -> Run:
    """Search as a recipe says, like ``hwnas search RECIPE``.

    Args:
        recipe: TOML file.
        path: Folder of the run; ``runs/<name>`` if None.
        settings: Changes to the recipe by dotted key, such as ``{"search.trials": 500}``, or by the
            name of a table with a config object, of which the fields that were given count.
        reporter: Reporter of the progress; the standard error if None.
        ray_address: Address of a Ray cluster; see `hwnas.search`.

    Raises:
        HwnasError: See `hwnas.search`.
    """
    changes = overrides_of(settings or {})
    folder = None if path is None else Path(path)
    return run_described(Experiment.load(recipe, changes), folder, reporter, ray_address)


def run_described(
    experiment: Experiment,
    folder: Path | None,
    reporter: Reporter | None,
    ray_address: str | None,
) -> Run:
    """Run an experiment, and return its run; arguments as in `search`."""
    result = experiment.run(folder, reporter, ray_address)
    return Run(RunFolder.open(result.run, experiment.objects), result)
