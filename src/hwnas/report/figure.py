"""Parts shared by all plots: an empty figure, its colours and its axes.

The page's style sheet colours text, grid and background, so that one figure serves light screens,
dark screens and paper. Only marks have colours here, chosen to be visible on all three.
"""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go

from hwnas.report.data import Finalist, ObjectiveInfo, ReportData
from hwnas.report.quantities import metric_name

__all__ = [
    "ACCENT",
    "GREY",
    "RANDOM",
    "axis",
    "axis_title",
    "blank",
    "finalist_colours",
    "mark_line",
    "named",
]

ACCENT = "#3b82f6"
RANDOM = "#d9822b"
GREY = "#8b93a1"
FINALISTS = ("#e5484d", "#12a594", "#9d5bd2", "#d69e00", "#e54696", "#4d9f2c")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def finalist_colours(data: ReportData) -> dict[str, str]:
    """Return a colour for each finalist by id, the same in every part of the report."""
    return {f.id: FINALISTS[i % len(FINALISTS)] for i, f in enumerate(data.finalists)}


def axis_title(objective: ObjectiveInfo) -> str:
    """Return an axis title with the metric, its unit, its kind and its target."""
    qualities = ", ".join(part for part in (objective.unit, objective.kind) if part)
    name = f"{metric_name(objective.metric, objective.unit)} ({qualities})"
    return html.escape(f"{name} on {objective.target}" if objective.target else name)


def blank(title: str, x: str, y: str) -> go.Figure:
    """Return a figure without traces; ``title``, ``x`` and ``y`` may contain Plotly's markup."""
    clear = "rgba(0,0,0,0)"
    layout: dict[str, Any] = {
        "template": "none",
        "title": {"text": title},
        "font": {"family": FONT, "size": 12.5},
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "height": 430,
        "margin": {"l": 60, "r": 16, "t": 36, "b": 52},
        "hovermode": "closest",
        "modebar": {"bgcolor": clear},
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12.5}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": clear},
        "xaxis": axis(x),
        "yaxis": axis(y),
    }
    return go.Figure(layout=layout)


def axis(title: str) -> dict[str, Any]:
    """Return an axis that starts at its data, not at 0; ``title`` may contain Plotly's markup."""
    shown = {"text": title, "font": {"size": 13}, "standoff": 12}
    return {"title": shown, "zeroline": False, "automargin": True}


def mark_line(figure: go.Figure, text: str, **position: float) -> None:
    """Draw a dashed line at ``x=`` or ``y=`` with a label."""
    draw = figure.add_vline if "x" in position else figure.add_hline
    draw(
        **position,
        line={"color": GREY, "width": 1.5, "dash": "dash"},
        annotation={"text": text, "font": {"size": 11.5}},
    )


def named(finalist: Finalist) -> str:
    """Return a finalist's name, escaped for a legend."""
    return html.escape(finalist.name)
