"""Commands that show the Pareto front of a run and compare those of several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import SEARCHES, Json, RunPath, app, out, print_json

if TYPE_CHECKING:
    from hwnas.stages.results.comparison import Comparison
    from hwnas.stages.results.run_result import RunResult

CsvFile = Annotated[Path | None, typer.Option("--csv", help="File for the table as CSV")]
AddedTarget = Annotated[
    str | None, typer.Option("--target", help="Target that was added with `hwnas specialise`")
]


@app.command(rich_help_panel=SEARCHES)
def front(
    run: RunPath,
    pick: Annotated[
        list[str] | None,
        typer.Option(help="Networks: knee, fastest, most-accurate or an id; may be repeated"),
    ] = None,
    csv: CsvFile = None,
    target: AddedTarget = None,
    as_json: Json = False,
) -> None:
    """Show the Pareto front of a run, also of an unfinished one."""
    from hwnas.stages.results.fronts import read_front
    from hwnas.stages.results.run_result import write_front

    summary = read_front(run, target, pick or ())
    _note_if_stale(run)
    if csv is not None:
        write_front(summary, csv)
    if as_json:
        print_json(summary.to_json())
        return
    _print_front(summary)
    if csv is not None:
        out.print(f"table    {csv}", soft_wrap=True, markup=False)


@app.command(rich_help_panel=SEARCHES)
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs")],
    csv: CsvFile = None,
    target: AddedTarget = None,
    as_json: Json = False,
) -> None:
    """Compare the fronts of runs with the same objectives."""
    from hwnas.stages.results.comparison import compare_runs, write_comparison

    found = compare_runs(runs, target)
    _note_if_stale(*runs)
    if csv is not None:
        write_comparison(found, csv)
    if as_json:
        print_json(found.to_json())
        return
    _print_comparison(found)
    if csv is not None:
        out.print(f"table    {csv}", soft_wrap=True, markup=False)


def _note_if_stale(*runs: Path) -> None:
    """Print a note for each run whose results are of other inputs than the current ones."""
    from hwnas.run_folder import RunFolder
    from hwnas.stages.staleness import stale_stages, told_stale

    for run in runs:
        folder = RunFolder.open(run)
        if stale := stale_stages(folder):
            print(f"note: {told_stale(folder, stale)}", file=sys.stderr)


def _print_front(summary: RunResult) -> None:
    from hwnas.cli.terminal import (
        has_targets,
        mark_of,
        metric_text,
        objective_text,
        print_missed_limits,
        table_of,
        target_text,
    )
    from hwnas.report.quantities import number

    labels = [objective.label for objective in summary.objectives]
    measured = any(row.measured_latency_ms is not None for row in summary.front)
    columns = ["network", *map(objective_text, summary.objectives)]
    columns += ["tested", "measured ms"] if measured else []
    columns += ["target"] if has_targets(summary) else []
    rows = []
    for row in summary.front:
        cells = [
            metric_text(row.values[label], row.intervals[label])
            if label in row.intervals
            else number(row.values[label])
            for label in labels
        ]
        if measured:
            ms = row.measured_latency_ms
            cells += [metric_text(row.test), "-" if ms is None else number(ms)]
        if has_targets(summary):
            cells.append(target_text(row, summary))
        rows.append([f"{row.id}{mark_of(row)}  {', '.join(row.picks)}".rstrip(), *cells])
    title = f"Pareto front of {summary.run} ({summary.trials} candidates evaluated)"
    out.print(title, style="bold", soft_wrap=True, markup=False)
    out.print(table_of(columns, rows))
    print_missed_limits(out, summary)


def _print_comparison(found: Comparison) -> None:
    from hwnas.cli.terminal import label_text, table_of
    from hwnas.report.quantities import number

    columns = ["run", "trials", "front", "hypervolume", "share"]
    columns += [f"best {label_text(label)}" for label in found.objectives]
    rows = [
        [row.run, str(row.trials), str(row.front)]
        + [number(row.hypervolume), f"{row.hypervolume_share:.3f}"]
        + [number(row.best[label]) for label in found.objectives]
        for row in found.runs
    ]
    out.print(table_of(columns, rows))
    point = ", ".join(f"{label} {number(v)}" for label, v in found.reference_point.items())
    out.print(
        f"reference point of the hypervolume: {point}; share: of the hypervolume of all fronts",
        style="dim",
        soft_wrap=True,
        markup=False,
    )
    for row in found.runs:
        if row.left_out:
            out.print(
                f"{row.run}: {', '.join(row.left_out)} left out, because the measured values do "
                "not meet the limits",
                soft_wrap=True,
                markup=False,
            )
        for other, share in row.covered_by.items():
            out.print(
                f"{share:.0%} of the front of {row.run} is equalled or beaten by {other}",
                soft_wrap=True,
                markup=False,
            )
