"""What a run has found, for the terminal, for scripts and for the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hwnas.atomic import write_text
from hwnas.deploy.bundle import Bundle
from hwnas.run_folder import RunFolder
from hwnas.search import Scored, SearchResult
from hwnas.search.objective import LATENCY, Objective, label_on
from hwnas.stages.finalists import latency_of, picks, read_bundles, score_of
from hwnas.stages.job import Goal, Job
from hwnas.stages.search import found

__all__ = [
    "FrontRow",
    "Summary",
    "example_image",
    "front_row",
    "summarise",
    "summary_of",
    "write_front",
]


_COUNTS = ("macs", "params", "weight_bytes")


@dataclass(frozen=True)
class FrontRow:
    """One network of the front, or a finalist from the next one.

    Attributes:
        id: Of the candidate.
        picks: What it is best at, e.g. ``("knee",)``.
        values: By objective label, as the search had them.
        standard_errors: Of the task's metrics, by name.
        test: The task's first metric on the test split after fine-tuning; None for non-finalists.
        predicted_latency_ms: Of the first latency objective; None where there is none.
        measured_latency_ms: The same of finalists; None for all others.
        predicted_ms: On each target, by its name.
        measured_ms: The same of finalists; empty for all others.
        macs: Multiply-accumulates of one image.
        params: Trainable parameters.
        weight_bytes: Size of the weights.
        bundle: The finalist's bundle, relative to the run; None for others.
        architecture: Its choices, and those of the candidate's further roles.
    """

    id: str
    picks: tuple[str, ...]
    values: Mapping[str, float]
    standard_errors: Mapping[str, float]
    test: float | None
    predicted_latency_ms: float | None
    measured_latency_ms: float | None
    predicted_ms: Mapping[str, float]
    measured_ms: Mapping[str, float]
    macs: int
    params: int
    weight_bytes: int
    bundle: str | None
    architecture: Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """What a search of a run has found.

    Attributes:
        run: The run's folder.
        output: Where front, bundles and report are.
        metric: Name of the task's first metric.
        objectives: What was searched for.
        trials: How many candidates were evaluated.
        front: Networks that no other one beats, and finalists.
        report: The report, if it was written.
    """

    run: Path
    output: Path
    metric: str
    objectives: tuple[Objective, ...]
    trials: int
    front: tuple[FrontRow, ...]
    report: Path | None

    @property
    def finalists(self) -> tuple[FrontRow, ...]:
        """Rows that have a bundle."""
        return tuple(row for row in self.front if row.bundle is not None)

    @property
    def next_commands(self) -> tuple[str, ...]:
        """What to try next."""
        if not self.finalists:
            return (f"hwnas resume {self.run}",)
        bundle = self.run / str(self.finalists[0].bundle)
        example = example_image(self.run)
        added = self.output != self.run  # by `specialise`, whose folders have the targets' names
        of_target = f" --target {self.output.name}" if added else ""
        further = f"hwnas specialise {self.run} --target cpu-onnxruntime-fp32-b8-t1"
        return (
            f"hwnas export {self.run}{of_target} --pick knee --out my-model",
            f"hwnas verify {bundle}",
            f"hwnas run {bundle} {example if example.exists() else 'image.png'}",
            *([] if added else [further]),
        )

    def to_json(self) -> dict[str, Any]:
        """What a script would want to read."""
        return {
            "run": str(self.run),
            "output": str(self.output),
            "metric": self.metric,
            "objectives": [{**asdict(o), "label": o.label} for o in self.objectives],
            "trials": self.trials,
            "front": [asdict(row) for row in self.front],
            "report": None if self.report is None else str(self.report),
            "next_commands": list(self.next_commands),
        }


def example_image(run: Path) -> Path:
    """Where a run keeps an image to try its bundles on."""
    return run / "example.png"


def summarise(job: Job, goal: Goal) -> Summary:
    """Read the results of a goal from the run folder."""
    metric = job.ingredients.task.metrics[0]
    bundles = read_bundles(job.folder.output(goal.target) / "bundles")
    result, names = found(job.folder.path, goal), picks(bundles, metric, goal.objectives)
    return summary_of(job.folder, goal, result, bundles, names, metric.name)


def summary_of(
    folder: RunFolder,
    goal: Goal,
    result: SearchResult,
    bundles: Mapping[str, Bundle],
    names: Mapping[str, str],
    metric: str,
) -> Summary:
    """What a search of a run has found, put together.

    Args:
        folder: The run.
        goal: What was searched for.
        result: All trials.
        bundles: Of the finalists, by id.
        names: Ids of networks by what they are best at.
        metric: Which test score is shown.
    """
    out = folder.output(goal.target)
    front = list(result.front)
    listed = {trial.candidate.id for trial in front}
    front += [
        t for t in result.trials if t.candidate.id in bundles and t.candidate.id not in listed
    ]
    report = out / "report.html"
    return Summary(
        run=folder.path,
        output=out,
        metric=metric,
        objectives=goal.objectives,
        trials=len(result.trials),
        front=tuple(
            front_row(folder.path, goal, trial, names, bundles.get(trial.candidate.id), metric)
            for trial in front
        ),
        report=report if report.exists() else None,
    )


def front_row(
    run: Path,
    goal: Goal,
    trial: Scored,
    names: Mapping[str, str],
    bundle: Bundle | None,
    metric: str,
) -> FrontRow:
    """What is known of one network; the arguments are those of `summary_of`."""
    latencies = [trial.values[o.label] for o in goal.objectives if o.metric == LATENCY]
    measurements = bundle.measurements if bundle else ()
    return FrontRow(
        id=trial.candidate.id,
        picks=tuple(name for name, picked in names.items() if picked == trial.candidate.id),
        values=trial.values,
        standard_errors=trial.standard_errors,
        test=None if bundle is None else score_of(bundle, metric, "test")["value"],
        predicted_latency_ms=latencies[0] if latencies else None,
        measured_latency_ms=latency_of(bundle, goal.objectives) if bundle else None,
        predicted_ms={t: trial.estimates[label_on(LATENCY, t)].mean for t in goal.targets},
        measured_ms={m.target: m.latency_ms for m in measurements},
        macs=trial.counted["macs"],
        params=trial.counted["params"],
        weight_bytes=trial.counted["weight_bytes"],
        bundle=None if bundle is None else str(bundle.folder.relative_to(run)),
        architecture=trial.candidate.as_dict(),
    )


def write_front(summary: Summary, path: Path) -> None:
    """The front as a table for spreadsheets; numbers in full, nothing where there is none.

    Where there are several targets, each has its own columns.
    """
    lines = [_cells(row, summary) for row in summary.front]
    choices = sorted({name for row in summary.front for name in row.architecture})
    text = io.StringIO()
    writer = csv.writer(text)
    if lines:
        writer.writerow([*lines[0], *choices])
    for row, line in zip(summary.front, lines, strict=True):
        writer.writerow([*line.values(), *(row.architecture.get(name) for name in choices)])
    write_text(path, text.getvalue())


def _cells(row: FrontRow, summary: Summary) -> dict[str, Any]:
    """What a line of the table says, but for the choices."""
    cells: dict[str, Any] = {"id": row.id, "picks": " ".join(row.picks)}
    cells |= {o.label: row.values[o.label] for o in summary.objectives}
    cells |= {label_on(LATENCY, target): ms for target, ms in row.predicted_ms.items()}
    cells[f"test_{summary.metric}"] = row.test
    cells["measured_latency_ms"] = row.measured_latency_ms
    if len(row.predicted_ms) > 1:
        cells |= {
            f"measured_{label_on(LATENCY, t)}": row.measured_ms.get(t) for t in row.predicted_ms
        }
    return cells | {count: getattr(row, count) for count in _COUNTS} | {"bundle": row.bundle}
