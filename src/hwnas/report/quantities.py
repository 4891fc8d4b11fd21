"""Formatting of numbers with their units for readers."""

from __future__ import annotations

from hwnas.interval import Interval, lognormal_interval
from hwnas.report.data import ObjectiveInfo, Score

__all__ = [
    "cost_range",
    "count",
    "metric_name",
    "number",
    "score",
    "score_range",
    "seconds",
    "size",
    "with_unit",
]


def number(value: float) -> str:
    """Format a number with four significant digits, or as an integer from 1e4 to 1e9."""
    rounded = float(f"{value:.4g}")
    return f"{value:,.0f}" if 1e4 <= abs(rounded) < 1e9 else f"{value:.4g}"


def count(value: int) -> str:
    """Format a count with three significant digits and an SI prefix: ``5.48 M``."""
    rounded = float(f"{value:.3g}")
    for power, prefix in ((1e15, ""), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rounded >= power:
            return f"{rounded / power:.3g} {prefix}" if prefix else f"{value:.1e}"
    return str(value)


def size(size_bytes: int) -> str:
    """Format bytes in decimal units: ``512 B``, ``1.53 MB``."""
    shown = count(size_bytes)
    return f"{shown}B" if " " in shown else f"{shown} B"


def seconds(value: float) -> str:
    """Format a duration: ``0.42 s``, ``12.3 s``, ``4 min 05 s`` or ``1 h 12 min``."""
    if value < 59.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02} min" if hours else f"{minutes} min {rest:02} s"


def score(value: Score) -> str:
    """Format a mean with its 95 % interval; without the interval if it is a point."""
    return f"{value.mean:.4f}{score_range(value.interval)}"


def score_range(interval: Interval | None) -> str:
    """Format the ends of a score's interval as a suffix; empty for a point or no interval."""
    if interval is None or interval.low == interval.high:
        return ""
    return f" ({interval.low:.4f} to {interval.high:.4f})"


def cost_range(mean: float, std: float) -> str:
    """Format the 90 % interval of a predicted cost, by which limits are checked."""
    low, high = lognormal_interval(mean, std).ends
    return f"{number(low)} to {number(high)}"


def metric_name(metric: str, unit: str = "") -> str:
    """Return a metric in words without its unit: ``latency_ms`` is ``latency``."""
    words = metric.removesuffix(f"_{unit.lower()}" if unit else "").split("_")
    return " ".join("IoU" if word == "iou" else word for word in words)


def with_unit(value: float, objective: ObjectiveInfo) -> str:
    """Format a value of an objective with its unit, e.g. ``0.412 ms``."""
    return f"{number(value)} {objective.unit}".rstrip()
