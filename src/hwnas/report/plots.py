"""Plots of the report other than the trade-off: predictions, search, training and durations."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
import scipy
from plotly.subplots import make_subplots

from hwnas.interval import difference_interval
from hwnas.report.data import CalibrationRow, ReportData, TrainingCurveRow
from hwnas.report.figure import (
    ACCENT,
    GREY,
    RANDOM,
    axis,
    blank,
    finalist_colours,
    mark_line,
    named,
)
from hwnas.report.quantities import metric_name, number, score, seconds

if TYPE_CHECKING:
    from hwnas.search.strategies.learning import LearnedDistribution

__all__ = [
    "calibration",
    "calibration_error",
    "generalisation",
    "hypervolume",
    "learned_choices",
    "stage_seconds",
    "training_curves",
]


def calibration_error(rows: Sequence[CalibrationRow]) -> str:
    """Describe the median absolute error, rank correlation and n of at least one row."""
    errors = [abs(row.predicted / row.measured - 1) for row in rows]
    text = f"median absolute error {100 * statistics.median(errors):.1f} %"
    predicted, measured = [r.predicted for r in rows], [r.measured for r in rows]
    if len(rows) > 2 and len(set(predicted)) > 1 and len(set(measured)) > 1:
        text += f", Spearman {scipy.stats.spearmanr(predicted, measured).statistic:.3f}"
    return f"{text}, n = {len(rows)}"


def calibration(rows: Sequence[CalibrationRow]) -> go.Figure:
    """Plot predicted over measured costs of one metric, with intervals and the diagonal."""
    noun, unit = rows[0].noun, rows[0].unit
    figure = blank(
        f"Predicted against measured {noun}: {calibration_error(rows)}",
        f"measured {noun} ({unit})",
        f"predicted {noun} ({unit})",
    )
    ends = [f([r.measured for r in rows] + [r.predicted for r in rows]) for f in (min, max)]
    figure.add_trace(
        go.Scatter(
            x=ends,
            y=ends,
            mode="lines",
            line={"color": GREY, "dash": "dash", "width": 1.5},
            name="predicted = measured",
            hoverinfo="skip",
        )
    )
    colours = {"left out in turn": ACCENT, "finalist": RANDOM}
    for role, colour in colours.items():
        chosen = [row for row in rows if row.role == role]
        if chosen:
            figure.add_trace(_calibration_points(chosen, role, colour))
    return figure


def _calibration_points(rows: Sequence[CalibrationRow], role: str, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[row.measured for row in rows],
        y=[row.predicted for row in rows],
        error_y={
            "array": [row.upper - row.predicted for row in rows],
            "arrayminus": [row.predicted - row.lower for row in rows],
            "symmetric": False,
            "thickness": 1,
            "width": 3,
        },
        mode="markers",
        marker={"color": colour, "size": 9, "symbol": "circle" if role != "finalist" else "star"},
        name=f"{role} (n = {len(rows)})",
        hovertext=[
            f"{html.escape(row.id)}<br>predicted {number(row.predicted)} {row.unit} "
            f"({number(row.lower)} to {number(row.upper)})<br>"
            f"measured {number(row.measured)} {row.unit}"
            for row in rows
        ],
        hoverinfo="text",
    )


def generalisation(data: ReportData) -> go.Figure:
    """Plot validation minus test score of each finalist, with the difference's 95 % interval."""
    metric = html.escape(metric_name(data.finalists[0].metric))
    figure = blank(
        f"Validation minus test {metric} of the finalists",
        f"validation minus test {metric} (evaluated)",
        "",
    )
    colours = finalist_colours(data)
    for finalist in data.finalists:
        validation, test = finalist.validation, finalist.test
        difference = validation.mean - test.mean
        interval = difference_interval(
            validation.mean, validation.interval, test.mean, test.interval
        )
        figure.add_trace(
            go.Scatter(
                x=[difference],
                y=[f"{named(finalist)}<br>n = {validation.n:,}, {test.n:,}"],
                error_x={
                    "array": [interval.above(difference)],
                    "arrayminus": [interval.below(difference)],
                    "symmetric": False,
                    "width": 6,
                },
                mode="markers",
                marker={"color": colours[finalist.id], "size": 11},
                hovertext=f"validation {score(validation)} (n = {validation.n:,})<br>"
                f"test {score(test)} (n = {test.n:,})",
                hoverinfo="text",
            )
        )
    mark_line(figure, "", x=0)
    figure.update_yaxes(autorange="reversed")
    return figure.update_layout(
        showlegend=False, margin={"t": 16}, height=130 + 60 * len(data.finalists)
    )


def hypervolume(data: ReportData) -> go.Figure:
    """Plot the hypervolume over trials, one line for each sampler."""
    figure = blank("Hypervolume over trials", "finished trials", "hypervolume")
    for curve in data.hypervolume:
        is_random = curve.sampler == "random"
        figure.add_trace(
            go.Scatter(
                x=curve.trials,
                y=curve.values,
                mode="lines",
                line={
                    "shape": "hv",
                    "width": 2,
                    "color": RANDOM if is_random else ACCENT,
                    "dash": "dash" if is_random else "solid",
                },
                name=html.escape(curve.sampler),
            )
        )
    return figure.update_layout(showlegend=True, hovermode="x unified")


def training_curves(data: ReportData) -> go.Figure:
    """Plot the losses of the largest and smallest network and the learning rate over epochs."""
    rows = data.training
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.74, 0.26])
    figure.update_layout(blank("Training of the supernet", "", "").layout)
    lines = {
        "largest network": ([r.loss_largest for r in rows], ACCENT, 1),
        "smallest network": ([r.loss_smallest for r in rows], RANDOM, 1),
        "learning rate": ([r.learning_rate for r in rows], GREY, 2),
    }
    for name, (values, colour, row) in lines.items():
        figure.add_trace(_training_line(rows, values, name, colour), row=row, col=1)
    figure.update_xaxes(title={"text": ""}, row=1, col=1)
    figure.update_xaxes(axis("epoch"), row=2, col=1)
    figure.update_yaxes(title={"text": "training loss"}, row=1, col=1)
    figure.update_yaxes(axis("learning rate"), nticks=4, row=2, col=1)
    return figure.update_layout(hovermode="x unified")


def _training_line(
    rows: Sequence[TrainingCurveRow], values: Sequence[float], name: str, colour: str
) -> go.Scatter:
    return go.Scatter(
        x=[row.epoch for row in rows],
        y=values,
        mode="lines",
        line={"color": colour, "width": 2},
        name=name,
        showlegend=name != "learning rate",  # named by its axis
        customdata=[f"step {row.step:,}, {seconds(row.seconds)}" for row in rows],
        hovertemplate="%{y:.4g} (%{customdata})",
    )


def learned_choices(learned: LearnedDistribution) -> go.Figure:
    """Plot the probability of each option of each choice, one row a choice."""
    limit = learned.cost_limit
    title = f"Cost limit {limit:g}" if limit is not None else f"Cost weight {learned.cost_weight:g}"
    figure = blank(title, "options, in their order", "")
    rows = [list(options.items()) for options in learned.probabilities.values()]
    most = max(map(len, rows))
    padded = [[*row, *[("", None)] * (most - len(row))] for row in rows]
    names = [html.escape(name) for name in learned.probabilities]
    clear, full = "rgba(59, 130, 246, 0.04)", "rgba(59, 130, 246, 1)"  # of ACCENT
    figure.add_trace(
        go.Heatmap(
            x=list(range(1, most + 1)),
            y=names,
            z=[[probability for _, probability in row] for row in padded],
            text=[[html.escape(option) for option, _ in row] for row in padded],
            texttemplate="%{text}",
            hovertemplate="%{y} = %{text}: %{z:.1%}<extra></extra>",
            colorscale=[[0, clear], [1, full]],
            zmin=0,
            zmax=1,
            showscale=False,
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(dtick=1, showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure.update_layout(height=110 + 24 * len(rows))


def stage_seconds(data: ReportData) -> go.Figure:
    """Plot the wall, CPU and GPU seconds of each stage of the run."""
    figure = blank("Seconds by stage", "seconds (measured)", "")
    kinds: dict[str, tuple[list[float | None], str]] = {
        "wall time": ([stage.wall_s for stage in data.stage_times], ACCENT),
        "CPU time": ([stage.cpu_s for stage in data.stage_times], RANDOM),
        "GPU time": ([stage.gpu_s for stage in data.stage_times], GREY),
    }
    for name, (times, colour) in kinds.items():
        if any(time is not None for time in times):
            figure.add_trace(
                go.Bar(
                    x=times,
                    y=[html.escape(stage.name) for stage in data.stage_times],
                    orientation="h",
                    marker={"color": colour},
                    name=name,
                    hovertext=["" if t is None else f"{name} {seconds(t)}" for t in times],
                    hoverinfo="text+y",
                )
            )
    figure.update_yaxes(autorange="reversed")
    height = 130 + 44 * len(data.stage_times)
    return figure.update_layout(barmode="group", bargap=0.3, height=height)
