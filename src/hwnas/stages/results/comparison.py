"""Comparison of the fronts of runs with the same objectives."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.atomic import write_text
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.run_folder import RunFolder
from hwnas.search import Scored
from hwnas.search.objectives.front import Losses, coverage, hypervolume, reference_point
from hwnas.search.objectives.objective import Objective, losses
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.results.fronts import opened_goal, results_of, without
from hwnas.stages.results.run_result import breaking

__all__ = ["ComparedRun", "Comparison", "compare_runs", "write_comparison"]


@dataclass(frozen=True)
class ComparedRun:
    """Result of one run in a comparison.

    Attributes:
        run: Folder of the run, as it was given.
        trials: Number of candidates that the run evaluated.
        front: Number of candidates on its front.
        hypervolume: Hypervolume of its front, from the common reference point.
        hypervolume_share: Hypervolume divided by that of all runs together, in 0..1.
        best: Best value of each objective, by label.
        covered_by: Share of this front that some network of another run equals or dominates, by
            the name of that run.
        left_out: Ids of networks that are not counted, since they did not meet the limits when
            they were measured.
    """

    run: str
    trials: int
    front: int
    hypervolume: float
    hypervolume_share: float
    best: Mapping[str, float]
    covered_by: Mapping[str, float]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Comparison of runs with the same objectives.

    Attributes:
        objectives: Labels of the objectives.
        reference_point: Reference point of the hypervolumes, by label: a tenth of the range beyond
            the worst value of all fronts.
        runs: Results of the runs, in the order in which they were given.
    """

    objectives: tuple[str, ...]
    reference_point: Mapping[str, float]
    runs: tuple[ComparedRun, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for scripts."""
        return asdict(self)


def compare_runs(runs: Sequence[Path], target: str | None = None) -> Comparison:
    """Compare the fronts of runs by the values of their searches, finished or not.

    Only networks that meet the limits count: by the values of the search, and for finalists also by
    the delivered values.

    Args:
        runs: Folders of the runs, at least two.
        target: Target that all runs were specialised for; their own if None.

    Raises:
        ConfigError: There are fewer than two runs, one is given twice, or their objectives differ.
        InfeasibleError: No network of a run meets the limits.
        RunError: A folder holds no run, no such target or no finished trial.
    """
    names = [str(run) for run in runs]
    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        raise ConfigError(f"got the runs {', '.join(names)}; expected two or more different runs")
    found = []
    objectives: tuple[Objective, ...] | None = None
    for run in runs:
        folder, goal = opened_goal(run, target)
        objectives = objectives or goal.objectives
        _check_same(names[0], objectives, str(run), goal.objectives)
        found.append(_counted(folder, goal))
    assert objectives is not None
    fronts = [losses(objectives, [trial.values for trial in each.front]) for each in found]
    together = np.vstack(fronts)
    reference = reference_point(together)
    whole = hypervolume(together, reference)
    rows = []
    for name, front, counted in zip(names, fronts, found, strict=True):
        volume = hypervolume(front, reference)
        others = {other: f for other, f in zip(names, fronts, strict=True) if other != name}
        covered = {other: coverage(f, front) for other, f in others.items()}
        best = _by_label(objectives, front.min(0))
        rows.append(
            ComparedRun(
                name,
                counted.trials,
                len(front),
                volume,
                volume / whole,
                best,
                covered,
                counted.left_out,
            )
        )
    labels = tuple(objective.label for objective in objectives)
    return Comparison(labels, _by_label(objectives, reference), tuple(rows))


@dataclass(frozen=True)
class _Counted:
    """Networks of a run that count in a comparison."""

    trials: int
    front: tuple[Scored, ...]
    left_out: tuple[str, ...]


def _counted(folder: RunFolder, goal: SearchGoal) -> _Counted:
    """Return the front of a run without the networks that do not meet the limits as measured."""
    result, out = results_of(folder, goal), folder.output(goal.target)
    broken = breaking(out, goal, read_bundles(out / "bundles"))
    front = without(result, broken).front
    if not front:
        raise InfeasibleError(
            f"{folder.path}: every network that was predicted to meet the limits broke one when "
            "it was measured; relax the limits"
        )
    return _Counted(len(result.trials), front, tuple(sorted(broken)))


def write_comparison(found: Comparison, path: Path) -> None:
    """Write a CSV table with one row for each run; numbers have full precision."""
    names = [row.run for row in found.runs]
    text = io.StringIO()
    writer = csv.writer(text)
    counts = ["trials", "front", "hypervolume", "hypervolume_share"]
    best = [f"best_{label}" for label in found.objectives]
    writer.writerow(["run", *counts, *best, *(f"covered_by_{name}" for name in names)])
    for row in found.runs:
        writer.writerow(
            [row.run, *(getattr(row, name) for name in counts)]
            + [row.best[label] for label in found.objectives]
            + [row.covered_by.get(name) for name in names]
        )
    write_text(path, text.getvalue())


def _by_label(objectives: Sequence[Objective], point: Losses) -> dict[str, float]:
    """Return a point of losses as values by label; `Objective.loss` is its own inverse."""
    return {o.label: o.loss(float(loss)) for o, loss in zip(objectives, point, strict=True)}


def _check_same(
    first: str, wanted: Sequence[Objective], second: str, given: Sequence[Objective]
) -> None:
    """Raise unless both runs have the same objectives and limits, in any order."""
    known = [{o.label: o for o in objectives} for objectives in (wanted, given)]
    for label in dict.fromkeys([*known[0], *known[1]]):
        one, other = known[0].get(label), known[1].get(label)
        if one is None or other is None:
            only = first if other is None else second
            raise ConfigError(
                f"{first} and {second} have different objectives: only {only} has {label}; compare "
                "runs with equal objectives"
            )
        if one.limit != other.limit:
            raise ConfigError(
                f"{first} and {second} have different objectives: {label} has the limit "
                f"{_limit(one)} in {first} and {_limit(other)} in {second}; compare runs with "
                "equal limits"
            )


def _limit(objective: Objective) -> str:
    return "none" if objective.limit is None else f"{objective.limit:g}"
