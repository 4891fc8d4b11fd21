"""Tables of results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.deploy.measurement.measurement import Measurement
from hwnas.predictors.benchmarks.benchmark import PredictorRow
from hwnas.predictors.devices.fingerprint import Fingerprint
from hwnas.report.quantities import number
from hwnas.search.objectives.objective import LATENCY, Objective
from hwnas.search.tables import SearchRow
from hwnas.stages.results.run_result import FrontRow, RunResult

__all__ = [
    "has_targets",
    "label_text",
    "mark_of",
    "metric_text",
    "objective_text",
    "print_fingerprint",
    "print_measurement",
    "print_missed_limits",
    "print_predictor_rows",
    "print_search_rows",
    "print_summary",
    "size_text",
    "table_of",
    "target_text",
]

_NAMED_TARGETS = 2  # most targets that the head of a column names
_NOTES = ("kernels", "in PyTorch", "note")
"""Settings of a runtime that are printed with a measurement."""


def table_of(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    text_columns: int = 1,
) -> Table:
    """Return a plain table; the first ``text_columns`` columns are text, the others numbers."""
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        title_style="bold",
    )
    for index, column in enumerate(columns):
        table.add_column(
            column, justify="left" if index < text_columns else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    return table


def print_summary(console: Console, summary: RunResult) -> None:
    """Print the front, the paths of report and bundles, and the next commands."""
    columns = ["network", summary.metric, "tested", "predicted ms", "measured ms"]
    columns += map(objective_text, _further(summary))
    columns += ["target"] if has_targets(summary) else []
    columns += ["MACs", "params", "size"]
    shown = [*summary.front, *summary.references]
    rows = [_front_row(row, summary) for row in shown]
    counts = {len(row.test_of_seeds) for row in shown if row.test_of_seeds}
    seeds = f" (lowest to highest of {max(counts)} fine-tunings)" if counts else ""
    title = f"Pareto front of {summary.run} ({summary.trials} candidates evaluated)"
    console.print(title, style="bold", soft_wrap=True, markup=False)  # a table would fold it
    console.print(table_of(columns, rows))
    console.print(
        f"{summary.metric}: on validation images, with the weights of the search (95% interval); "
        f"tested: finalists\nafter fine-tuning, on test images{seeds}; measured: p50 of the "
        "finalists;\nsize: the files of finalists, the weights of others.\n",
        style="dim",
    )
    print_missed_limits(console, summary)
    if summary.verdict is not None:
        console.print(f"{summary.verdict}\n", soft_wrap=True, markup=False)
    if summary.report is not None:
        console.print(f"report   {summary.report}", soft_wrap=True, markup=False)
    for row in (row for row in shown if row.bundle is not None):
        picks = f"  ({', '.join(row.picks)})" if row.picks else ""
        console.print(
            f"bundle   {summary.run / str(row.bundle)}{picks}", soft_wrap=True, markup=False
        )
    console.print("\nnext:")
    for command in summary.next_commands:
        console.print(f"  {command}", soft_wrap=True, markup=False)


def mark_of(row: FrontRow) -> str:
    """Return the mark in a table of a network that does not meet a limit; empty for others."""
    return " ✗" if row.missed_limits else ""


def print_missed_limits(console: Console, summary: RunResult) -> None:
    """Print a line for each limit that a network of the front does not keep, as measured."""
    for row in summary.front:
        for line in row.missed_limits:
            replaced = "" if row.bundle else " (another candidate took its place)"
            console.print(f"✗ {row.id}: {line}{replaced}", soft_wrap=True, markup=False)


def _front_row(row: FrontRow, summary: RunResult) -> list[str]:
    interval = row.intervals.get(summary.metric)
    value = metric_text(row.values.get(summary.metric), interval)
    return [
        f"{row.id}{mark_of(row)}",
        value,
        metric_text(row.test, _ends(row.test_of_seeds)),
        _ms(row.predicted_latency_ms),
        _ms(row.measured_latency_ms),
        *(_cost(row, each.label) for each in _further(summary)),
        *([target_text(row, summary)] if has_targets(summary) else []),
        count_text(row.macs),
        count_text(row.params),
        size_text(row.weight_bytes if row.file_bytes is None else row.file_bytes),
    ]


def _further(summary: RunResult) -> list[Objective]:
    """Return the objectives that have no column of their own in every table of networks."""
    latency = next((each for each in summary.objectives if each.metric == LATENCY), None)
    shown = (summary.metric, "macs", "params")
    return [o for o in summary.objectives if o is not latency and o.metric not in shown]


def _cost(row: FrontRow, label: str) -> str:
    """Return the value of an objective: measured if it was, otherwise that of the search."""
    value = row.measured.get(label, row.values.get(label))
    return "-" if value is None else number(value)


def objective_text(objective: Objective) -> str:
    """Return the head of an objective's column, without the names of many targets."""
    if len(objective.targets) <= _NAMED_TARGETS:
        return label_text(objective.label)
    return f"{objective.metric} ({objective.reduce} of {len(objective.targets)} targets)"


def label_text(label: str) -> str:
    """Return an objective's label with spaces, so that a narrow column can fold it."""
    return label.replace("@", " on ").replace("+", " + ")


def has_targets(summary: RunResult) -> bool:
    """Return whether the networks of a search ship for different targets."""
    return any(row.target is not None for row in summary.front)


def target_text(row: FrontRow, summary: RunResult) -> str:
    """Return the parts of a network's target in which the targets of the search differ."""
    if row.target is None:
        return "-"
    names = [name.split("-") for each in summary.objectives for name in each.all_targets]
    parts = zip(row.target.split("-"), *names, strict=True)
    return "-".join(own for own, *every in parts if len(set(every)) > 1)


def print_measurement(console: Console, name: str, measurement: Measurement) -> None:
    """Print the times of both clocks and their n, and a warning if the timing was disturbed."""
    rows = [
        [clock, *(f"{getattr(q, p):.4g}" for p in ("p20", "p50", "p80"))]
        for clock, q in (("CPU time", measurement.cpu_ms), ("wall time", measurement.wall_ms))
    ]
    title = f"{name} on {measurement.target}, {measurement.n} rounds"
    console.print(table_of(["ms a batch", "p20", "p50", "p80"], rows, title))
    console.print(
        f"{LATENCY} {measurement.latency_ms:.4g} (p50 of {measurement.clock} time); "
        f"{measurement.hardware}"
    )
    for name in _NOTES:
        if name in measurement.settings:
            console.print(f"{name}: {measurement.settings[name]}", soft_wrap=True, markup=False)
    if measurement.conditions:
        conditions = ", ".join(f"{name} {value}" for name, value in measurement.conditions.items())
        console.print(conditions, soft_wrap=True, markup=False)
    if measurement.contended:
        console.print(
            "disturbed by other processes: close them and measure again, with a longer --patience"
        )


def print_fingerprint(console: Console, found: Fingerprint) -> None:
    """Print the timed probes, and the constants of the roofline model fitted to them."""
    rows = [[name, f"{ms:.4g}"] for name, ms in found.probes_ms.items()]
    console.print(table_of(["probe", "ms a batch"], rows, f"Fingerprint of {found.target}"))
    machine = found.machine()
    console.print(
        f"modelled: {machine.gmacs:.3g} billion multiply-accumulates a second in dense "
        f"convolutions, {machine.depthwise:.0%} of that in depthwise ones; {machine.gbytes:.3g} "
        f"billion bytes a second; {machine.overhead_us:.3g} us an operator",
        soft_wrap=True,
    )


def print_predictor_rows(console: Console, rows: Sequence[PredictorRow]) -> None:
    """Print the mean over seeds for each device, and the mean over devices."""
    columns = ["device", "measured", "Spearman", "Kendall", "MAPE %", "median error %"]
    columns += ["coverage", "width %", "overshoot %", "accuracy lost", "seconds"]
    devices = list(dict.fromkeys(row.device for row in rows))
    lines = [_predictor_line(d, [row for row in rows if row.device == d]) for d in devices]
    lines.append(_predictor_line("mean", rows))
    seeds = len({row.seed for row in rows})
    title = f"{rows[0].method}: mean over {seeds} seeds"
    console.print(table_of(columns, lines, title))


def print_search_rows(console: Console, rows: Sequence[SearchRow]) -> None:
    """Print the mean over seeds for each number of evaluations."""
    columns = ["evaluations", "share", "share, wide box", "share, test", "distinct", "seconds"]
    lines = [
        _search_line([row for row in rows if row.evals == evals])
        for evals in dict.fromkeys(row.evals for row in rows)
    ]
    seeds = len({row.seed for row in rows})
    title = f"{rows[0].sampler}: share of the true front's hypervolume, mean over {seeds} seeds"
    console.print(table_of(columns, lines, title))


def _search_line(rows: Sequence[SearchRow]) -> list[str]:
    tests = [row.hypervolume_test for row in rows if row.hypervolume_test is not None]
    return [
        str(rows[0].evals),
        f"{fmean(row.hypervolume for row in rows):.4f}",
        f"{fmean(row.hypervolume_wide for row in rows):.4f}",
        f"{fmean(tests):.4f}" if tests else "-",
        f"{fmean(row.unique for row in rows):.4g}",
        f"{fmean(row.seconds for row in rows):.2f}",
    ]


def _predictor_line(name: str, rows: Sequence[PredictorRow]) -> list[str]:
    regrets = [row.regret for row in rows if row.regret is not None]
    numbers = (
        (fmean(row.samples for row in rows), ".3g"),
        (fmean(row.spearman for row in rows), ".4f"),
        (fmean(row.kendall for row in rows), ".4f"),
        (fmean(row.mape for row in rows), ".2f"),
        (fmean(row.median_ape for row in rows), ".2f"),
        (fmean(row.coverage90 for row in rows), ".3f"),
        (fmean(row.width90 for row in rows), ".1f"),
        (fmean(row.violation for row in rows), ".2f"),
    )
    lost = f"{fmean(regrets):.3g}" if regrets else "-"
    seconds = f"{fmean(row.seconds for row in rows):.2f}"
    return [name, *(f"{value:{form}}" for value, form in numbers), lost, seconds]


def metric_text(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Return a score with the ends of its interval, if it has one; a dash for None."""
    if value is None:
        return "-"
    if interval is None or interval[0] == interval[1]:
        return f"{value:.4f}"
    return f"{value:.4f} ({interval[0]:.4f} to {interval[1]:.4f})"


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), max(values)) if values else None


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def count_text(count: float) -> str:
    """Return a large number in thousands, millions or billions."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:g}"


def size_text(size_bytes: int) -> str:
    """Return a size of bytes in kB or MB."""
    return f"{size_bytes / 1e6:.2f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"
