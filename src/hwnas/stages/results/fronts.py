"""Current front of a run, finished or running, read without its data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.errors import ConfigError, InfeasibleError, RunError
from hwnas.plugin import closest
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.run_folder import RunFolder
from hwnas.search import Metric, SearchResult
from hwnas.search.objectives.front import knee
from hwnas.search.objectives.objective import Objective, weighed
from hwnas.stages.finalists.bundles import is_pick, picks, read_bundles
from hwnas.stages.finalists.limits import LimitCheck, best_kept, none_keeps
from hwnas.stages.goal import SearchGoal
from hwnas.stages.results.run_result import (
    FrontRow,
    RunResult,
    breaking,
    checks_of,
    front_row,
    summary_of,
    units_of,
)
from hwnas.stages.search import found

__all__ = ["opened_goal", "read_front", "results_of", "without"]


def read_front(run: Path, target: str | None = None, wanted: Sequence[str] = ()) -> RunResult:
    """Return a summary of the networks that a run has found so far.

    Networks are marked as ``hwnas export --pick`` would choose them: finalists by their measured
    values or, if there are no finalists yet, networks of the front by the values of the search.

    Args:
        run: Folder of the run.
        target: Target that the run was specialised for; its own if None.
        wanted: Networks to return, each ``"knee"``, ``"most-accurate"``, the lowest in a metric on
            devices, such as ``"fastest"``, or the id of any evaluated network; all of the front if
            empty.

    Raises:
        ConfigError: A wanted network does not exist.
        InfeasibleError: No evaluated network meets the limits, or a pick such as ``"knee"`` is
            wanted and no finalist keeps them.
        RunError: There is no run, no such target or no finished trial.
    """
    folder, goal = opened_goal(run, target)
    result = results_of(folder, goal)
    out = folder.output(goal.target)
    bundles = read_bundles(out / "bundles")
    metric = _main_metric(goal.objectives, bundles)
    # A metric that is no objective has no known direction here, so it cannot rank finalists.
    measured = bundles and metric.name in {objective.metric for objective in goal.objectives}
    names = (
        picks(bundles, metric, goal.objectives)
        if measured
        else _marks(without(result, breaking(out, goal, bundles)))
    )
    summary = summary_of(folder, goal, result, bundles, names, metric.name)
    if not wanted:
        return summary
    checks = checks_of(out, goal, bundles)
    units = units_of(bundles)
    every = {
        t.candidate.id: front_row(run, goal, t, {}, None, metric.name, units) for t in result.trials
    }
    _check_picks(wanted, {name: checks[name] for name in bundles})
    return replace(summary, front=_chosen(summary.front, every, wanted)).with_limits(checks)


def opened_goal(run: Path, target: str | None) -> tuple[RunFolder, SearchGoal]:
    """Open a run, and return it with its own goal or that of an added target.

    Raises:
        RunError: There is no run, or it was not specialised for the target.
    """
    folder = RunFolder.open(run)
    goal = SearchGoal(folder.recipe.objective)
    if target is None or target in goal.targets:
        return folder, goal
    if target not in folder.specialised:
        known = ", ".join([*goal.targets, *folder.specialised]) or "none"
        raise RunError(
            f"{run} has no front for {target!r}, only for: {known}; "
            f"`hwnas specialise {run} --target TARGET` adds one to a finished run"
        )
    return folder, SearchGoal.specialised(folder.recipe, target)


def results_of(folder: RunFolder, goal: SearchGoal) -> SearchResult:
    """Return the finished trials of a goal.

    Raises:
        InfeasibleError: None of them meets the limits.
        RunError: There is none yet.
    """
    result = found(folder.path, goal) if (folder.path / "study.db").exists() else None
    if result is None or not result.trials:
        raise RunError(
            f"{folder.path} has no finished trial yet; `hwnas status {folder.path}` shows its "
            "progress"
        )
    if not result.feasible:
        limits = ", ".join(f"{o.label} {o.limit:g}" for o in goal.objectives if o.limit is not None)
        raise InfeasibleError(
            f"{folder.path}: none of {len(result.trials)} networks meets the limits ({limits}) so "
            "far"
        )
    return result


def without(result: SearchResult, ids: Collection[str]) -> SearchResult:
    """Return the result as if some candidates had not been evaluated."""
    trials = tuple(trial for trial in result.trials if trial.candidate.id not in ids)
    return replace(result, trials=trials)


def _check_picks(wanted: Sequence[str], finalists: Mapping[str, Sequence[LimitCheck]]) -> None:
    """Raise if a pick such as ``"knee"`` is wanted, and every finalist breaks a limit."""
    if finalists and any(map(is_pick, wanted)) and not best_kept(finalists):
        raise none_keeps(finalists)


def _main_metric(objectives: Sequence[Objective], bundles: Mapping[str, Bundle]) -> Metric:
    """Return the task's first metric, as stated by bundles, or else the first metric objective."""
    scored = [o for o in objectives if not o.is_cost]
    directions = {o.metric: o.direction for o in (*scored, *objectives)}
    name = next(iter(directions))
    for bundle in bundles.values():
        name = bundle.description["metrics"][0]["name"]
    return Metric(name, directions.get(name, "maximize"), "")


def _marks(result: SearchResult) -> dict[str, str]:
    """Return the ids of the networks that `picks` would name, by the values of the search."""
    front = result.front
    if not front:
        return {}
    table = weighed(result.objectives, [trial.values for trial in front])
    names = {"knee": front[knee(table)].candidate.id}
    for column, objective in enumerate(result.objectives):
        best = front[int(table[:, column].argmin())].candidate.id
        if objective.metric in DEVICE_METRICS:
            names.setdefault(DEVICE_METRICS[objective.metric].pick, best)
        elif not objective.is_cost:
            names.setdefault("most-accurate", best)
    return names


def _chosen(
    front: Sequence[FrontRow], every: Mapping[str, FrontRow], wanted: Sequence[str]
) -> tuple[FrontRow, ...]:
    by_name = {name: row for row in front for name in (*row.picks, row.id)}
    rows = []
    for name in wanted:
        row = by_name.get(name) or every.get(name)
        if row is None:
            raise ConfigError(
                f"--pick {name!r} is not a network of this run; {closest(name, by_name)}"
            )
        rows.append(row)
    return tuple({row.id: row for row in rows}.values())
