"""Plot of the trade-off: candidates, their Pareto front, and the finalists as measured."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from hwnas.interval import Interval
from hwnas.report.data import Finalist, ObjectiveInfo, ReportData, TrialRow
from hwnas.report.figure import (
    ACCENT,
    GREY,
    RANDOM,
    axis_title,
    blank,
    finalist_colours,
    mark_line,
    named,
)
from hwnas.report.pictures import architecture_lines
from hwnas.report.quantities import metric_name, number, score, score_range, with_unit

__all__ = ["pareto_front"]

FADED = "rgba(59,130,246,0.35)"  # faded accent colour, for error bars behind their points


def pareto_front(data: ReportData, across: ObjectiveInfo | None = None) -> go.Figure:
    """Plot the main objective over another; the front is a line if there are just these two.

    Args:
        data: Contents of the report, with at least two objectives and one trial.
        across: Objective on the horizontal axis; the first of `ReportData.other_objectives` if
            None.
    """
    y, x = data.main_objective, across or data.other_objectives[0]
    title = f"{metric_name(y.metric, y.unit)} against {metric_name(x.metric, x.unit)}"
    figure = blank(html.escape(title[:1].upper() + title[1:]), axis_title(x), axis_title(y))
    joined = len(data.objectives) == 2
    for trace in _clouds(data, x, y):
        figure.add_trace(trace)
    if any(trial.on_front for trial in data.baseline_trials):
        figure.add_trace(
            _front(data.baseline_trials, x, y, joined, "random search's front", RANDOM)
        )
    if any(trial.on_front for trial in data.trials):
        figure.add_trace(_front(data.trials, x, y, joined, "Pareto front", ACCENT))
    colours, seen = finalist_colours(data), {trial.id: trial for trial in data.trials}
    for finalist in data.finalists:
        if finalist.id in seen:
            figure.add_trace(_finalist(finalist, seen[finalist.id], x, y, colours[finalist.id]))
    for reference in data.references:
        if y.metric == reference.metric and x.label in reference.delivered:
            figure.add_trace(_reference(reference, x))
    for objective, axis in ((x, "x"), (y, "y")):
        if objective.limit is not None:
            text = html.escape(f"limit {with_unit(objective.limit, objective)}")
            mark_line(figure, text, **{axis: objective.limit})
    return figure.update_layout(height=520)


def _clouds(data: ReportData, x: ObjectiveInfo, y: ObjectiveInfo) -> Iterable[go.Scatter]:
    kept = [trial for trial in data.trials if trial.feasible and not trial.on_front]
    over = [trial for trial in data.trials if not trial.feasible]
    for trials, name, colour, symbol in (
        (data.baseline_trials, "random search", RANDOM, "circle-open"),
        (over, "over a limit", GREY, "x-thin-open"),
        (kept, "candidates", ACCENT, "circle"),
    ):
        if trials:
            yield go.Scatter(
                x=[trial.values[x.label] for trial in trials],
                y=[trial.values[y.label] for trial in trials],
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.4},
                name=f"{name} (n = {len(trials)})",
                hovertext=[_hover(trial, (y, x)) for trial in trials],
                hoverinfo="text",
            )


def _front(
    trials: Sequence[TrialRow],
    x: ObjectiveInfo,
    y: ObjectiveInfo,
    joined: bool,
    name: str,
    colour: str,
) -> go.Scatter:
    """Return the front as a step line: at each x, the best y among points as good in x."""
    front = sorted((t for t in trials if t.on_front), key=lambda t: t.values[x.label])
    shape, dash = "hv" if x.direction == "minimize" else "vh", "solid"
    values = [trial.values[y.label] for trial in front]
    bars = _bars(values, [trial.interval(y) for trial in front])
    if colour == RANDOM:  # without error bars, to keep the search's own front legible
        dash, bars = "dot", _bars(values, [None for _ in front])
    return go.Scatter(
        x=[trial.values[x.label] for trial in front],
        y=values,
        mode="lines+markers" if joined else "markers",
        line={"shape": shape, "color": colour, "width": 2, "dash": dash},
        marker={"color": colour, "size": 8},
        error_y={**bars, "thickness": 1, "width": 2, "color": FADED},
        name=f"{name} (n = {len(front)})",
        hovertext=[_hover(trial, (y, x)) for trial in front],
        hoverinfo="text",
    )


def _bars(values: Sequence[float], intervals: Sequence[Interval | None]) -> dict[str, Any]:
    """Return error bars to both ends of the intervals, of length 0 where there is no interval."""
    up, down = (
        [0.0 if i is None else side(i, v) for v, i in zip(values, intervals, strict=True)]
        for side in (Interval.above, Interval.below)
    )
    visible = any(up) or any(down)
    return {"array": up, "arrayminus": down, "symmetric": False, "visible": visible}


def _finalist(
    finalist: Finalist, trial: TrialRow, x: ObjectiveInfo, y: ObjectiveInfo, colour: str
) -> go.Scatter:
    """Return a star at a finalist's search values, and a mark at its measured values, if any.

    The mark is a diamond, or a cross if a limit is broken.
    """
    xs, ys = [trial.values[x.label]], [trial.values[y.label]]
    hover = [f"<b>{named(finalist)}</b><br>{_hover(trial, (y, x))}"]
    intervals: list[Interval | None] = [None]
    delivered = finalist.delivered.get(x.label)
    if delivered is not None and y.metric == finalist.metric:
        xs.append(delivered)
        ys.append(finalist.test.mean)
        intervals.append(finalist.test.interval)
        hover.append(_delivered_hover(finalist, x, delivered))
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines+markers",
        line={"color": colour, "width": 1.5, "dash": "dot"},
        marker={
            "color": colour,
            "symbol": ["star", "diamond" if finalist.limit_state != "broken" else "x"][: len(xs)],
            "size": [15, 11][: len(xs)],
        },
        error_y={**_bars(ys, intervals), "thickness": 1.5, "width": 4},
        name=named(finalist) + (" (breaks a limit)" if finalist.limit_state == "broken" else ""),
        hovertext=hover,
        hoverinfo="text",
    )


def _reference(reference: Finalist, x: ObjectiveInfo) -> go.Scatter:
    """Return a square at the measured values of a reference network."""
    cost = reference.delivered[x.label]
    values = [reference.test.mean]
    return go.Scatter(
        x=[cost],
        y=values,
        mode="markers",
        marker={"color": GREY, "symbol": "square", "size": 11},
        error_y={**_bars(values, [reference.test.interval]), "thickness": 1.5, "width": 4},
        name=f"{named(reference)} ({html.escape(reference.id)})",
        hovertext=[_delivered_hover(reference, x, cost)],
        hoverinfo="text",
    )


def _delivered_hover(finalist: Finalist, x: ObjectiveInfo, cost: float) -> str:
    test = finalist.test
    missed = "".join(f"<br>{html.escape(line)}" for line in finalist.missed_limits)
    return (
        f"<b>{named(finalist)}</b>, as delivered<br>"
        f"{html.escape(metric_name(finalist.metric))} {score(test)} test, n = {test.n:,}"
        f"<br>{metric_name(x.metric, x.unit)} {number(cost)} {x.unit} (measured){missed}"
    )


def _hover(trial: TrialRow, objectives: Iterable[ObjectiveInfo]) -> str:
    lines = []
    for objective in objectives:
        ends = score_range(trial.interval(objective))
        value = number(trial.values[objective.label])
        name = metric_name(objective.metric, objective.unit)
        lines.append(f"{name} {value}{ends} {objective.unit} ({objective.kind})")
    lines += architecture_lines(trial.architecture)
    escaped = "<br>".join(html.escape(line) for line in lines)
    return (
        f"trial {trial.number}, {html.escape(trial.sampler)}, {html.escape(trial.id)}<br>{escaped}"
    )
