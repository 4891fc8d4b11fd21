"""Tables of the report: finalists, front, stages, properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hwnas.deploy.measurement.measurement import Measurement
from hwnas.report.data import Finalist, ObjectiveInfo, ReportData, TargetLatency
from hwnas.report.figure import GREY, finalist_colours
from hwnas.report.markup import Html, element, join
from hwnas.report.pictures import architecture_lines
from hwnas.report.quantities import (
    cost_range,
    count,
    metric_name,
    number,
    score_range,
    seconds,
    size,
    with_unit,
)

__all__ = ["choices_table", "finalists_table", "front_table", "properties_table", "stages_table"]

LIMIT_MARKS = {
    "kept": "violates a limit on test images",
    "within noise": "violates a limit, within noise",
    "broken": "breaks a limit as measured",
}
"""Mark of a finalist that violates a limit, by its `Finalist.limit_state`."""

Head = str | tuple[str, str]  # name of a column, or its name and a note


def table(heads: Sequence[Head], rows: Iterable[Sequence[str]], class_: str | None = None) -> Html:
    """Return a table that scrolls by itself if too wide; each cell carries its column's name."""
    labels = [head if isinstance(head, str) else ", ".join(head) for head in heads]
    top = [head if isinstance(head, str) else with_note(*head) for head in heads]
    body = [
        [
            element("td", element("div", cell), data_label=label)
            for cell, label in zip(row, labels, strict=True)
        ]
        for row in rows
    ]
    content = element(
        "table",
        element("thead", element("tr", *(element("th", head, scope="col") for head in top))),
        element("tbody", *(element("tr", *cells) for cells in body)),
        class_=class_,
    )
    return element("div", content, class_="scroll")


def with_note(text: str, *notes: str) -> Html:
    """Return a text with smaller lines below it."""
    return join([text, *(element("small", note) for note in notes)])


def finalists_table(data: ReportData) -> Html:
    """Return a table with one row a finalist, and the kind and sample size of each number.

    The last rows are the reference network, if there is one, and its conversions.
    """
    colours = finalist_colours(data)
    metric = metric_name(data.finalists[0].metric)
    further = [found.target for found in data.finalists[0].further]
    others = [o for o in data.objectives if o.kind == "predicted" and o.metric != "latency_ms"]
    heads: list[Head] = [
        "network",
        (f"test {metric}", "evaluated, 95\u00a0% interval"),
        ("latency", "measured, p50 (p20 to p80)"),
        ("predicted", "before measurement, 90\u00a0% interval"),
        *((f"on {target}", "measured; predicted") for target in further),
        *((metric_name(o.metric, o.unit), f"measured, {o.target}") for o in others),
        ("MACs", "counted"),
        ("parameters", "counted"),
        ("size", "ONNX file"),
        ("bundle", "beside this file"),
    ]
    shown = [(f, colours[f.id]) for f in data.finalists]
    shown += [(reference, GREY) for reference in data.references]
    targets = {f.measurement.target for f, _ in shown if f.measurement is not None}
    rows = [_finalist(f, colour, others, name_target=len(targets) > 1) for f, colour in shown]
    return table(heads, rows, "finalists")


def _finalist(
    finalist: Finalist, colour: str, others: Sequence[ObjectiveInfo], *, name_target: bool
) -> list[str]:
    dot = element("span", class_="dot", style=f"background:{colour}")
    network = join([dot, element("span", finalist.name, class_="pick")])
    named = with_note(network, finalist.id) if finalist.picks else network
    test = finalist.test
    ends = score_range(test.interval).strip(" ()")
    seeds = []
    if spread := test.of_seeds:
        seeds = [f"{min(spread):.4f} to {max(spread):.4f} over {len(spread)} fine-tunings"]
    return [
        join([named, *_missed(finalist)]),
        with_note(f"{test.mean:.4f}", *([ends] if ends else []), f"n = {test.n:,}", *seeds),
        _latency(finalist.measurement, name_target=name_target),
        _prediction(finalist.predicted_latency_ms, finalist.predicted_std_ms),
        *(_on_target(found) for found in finalist.further),
        *(_delivered(finalist, objective) for objective in others),
        count(finalist.macs),
        count(finalist.params),
        with_note(size(finalist.size_bytes), f"export error {finalist.max_relative_error:.0e}"),
        element("code", finalist.bundle),
    ]


def _delivered(finalist: Finalist, objective: ObjectiveInfo) -> str:
    value = finalist.delivered.get(objective.label)
    return "not measured" if value is None else with_unit(value, objective)


def _missed(finalist: Finalist) -> Iterable[Html]:
    """Yield the mark of a finalist that violates a limit, and its violated limits."""
    if finalist.missed_limits:
        yield element("small", LIMIT_MARKS[finalist.limit_state or "kept"], class_="flag mark")
    for line in finalist.missed_limits:
        yield element("small", line, class_="flag missed")


def _latency(measurement: Measurement | None, *, name_target: bool = False) -> str:
    if measurement is None:
        return "not measured"
    clock = "CPU" if measurement.clock == "cpu" else "wall"
    spread = measurement.headline
    shown = with_note(
        f"{number(measurement.latency_ms)} ms",
        f"{number(spread.p20)} to {number(spread.p80)}",
        f"{clock} time, n = {measurement.n}",
        *([f"on {measurement.target}"] if name_target else []),
    )
    if not measurement.contended:
        return shown
    return join([shown, element("small", "disturbed timing", class_="flag")])


def _prediction(mean_ms: float | None, std_ms: float | None) -> str:
    if mean_ms is None:
        return "–"
    shown = f"{number(mean_ms)} ms"
    return shown if std_ms is None else with_note(shown, cost_range(mean_ms, std_ms))


def _on_target(found: TargetLatency) -> Html:
    predicted = _prediction(found.predicted_ms, found.predicted_std_ms)
    return join([_latency(found.measurement), element("div", predicted)])


def front_table(data: ReportData) -> Html:
    """Return a table of the candidates on the Pareto front, with their architectures in words."""
    objectives = (data.main_objective, *data.other_objectives)
    heads: list[Head] = [
        *((metric_name(o.metric, o.unit), o.kind) for o in objectives),
        "trial",
        "architecture",
    ]
    front = sorted(
        (trial for trial in data.trials if trial.on_front),
        key=lambda trial: trial.values[objectives[-1].label],
    )
    rows = [
        [
            *(with_unit(trial.values[o.label], o) for o in objectives),
            with_note(str(trial.number), trial.id),
            join([element("div", line) for line in architecture_lines(trial.architecture)]),
        ]
        for trial in front
    ]
    return table(heads, rows)


def choices_table(finalist: Finalist) -> Html:
    """Return a table of a finalist's options by choice, for spaces without a picture."""
    shown = {
        name: option if isinstance(option, str) else number(option)
        for name, option in finalist.architecture.items()
    }
    return properties_table(shown, "choice", "option")


def stages_table(data: ReportData) -> Html:
    """Return a table of the seconds and state of each stage of the run."""
    heads = ["stage", "wall time", "CPU time", "GPU time", "state"]
    rows = [
        [
            stage.name,
            seconds(stage.wall_s),
            seconds(stage.cpu_s),
            "none" if stage.gpu_s is None else seconds(stage.gpu_s),
            stage.state,
        ]
        for stage in data.stage_times
    ]
    return table(heads, rows)


def properties_table(values: Mapping[str, str], name: str, value: str) -> Html:
    """Return a table of names and values in two columns."""
    return table([name, value], list(values.items()))
