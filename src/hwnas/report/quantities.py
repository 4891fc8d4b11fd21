"""Numbers as people write them, with their units."""

from __future__ import annotations

from hwnas.report.data import ObjectiveInfo, Score

__all__ = ["count", "metric_name", "number", "score", "seconds", "size", "with_unit"]


def number(value: float) -> str:
    """Four significant digits, without an exponent where that reads well."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def count(value: int) -> str:
    """Three significant digits with a thousand-step prefix: ``5.48 M``."""
    for power, prefix in ((1e15, ""), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.3g} {prefix}" if prefix else f"{value:.1e}"
    return str(value)


def size(size_bytes: int) -> str:
    """Bytes in decimal units: ``512 B``, ``1.53 MB``."""
    shown = count(size_bytes)
    return f"{shown}B" if " " in shown else f"{shown} B"


def seconds(value: float) -> str:
    """``0.42 s``, ``12.3 s``, ``4 min 05 s`` or ``1 h 12 min``."""
    if value < 59.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02} min" if hours else f"{minutes} min {rest:02} s"


def score(value: Score) -> str:
    """Mean and 95 % interval; no interval where no spread was seen."""
    margin = f" ± {value.margin:.4f}" if value.standard_error > 0 else ""
    return f"{value.mean:.4f}{margin}"


def metric_name(metric: str, unit: str = "") -> str:
    """A metric in words, its unit taken off: ``latency_ms`` is ``latency``."""
    words = metric.removesuffix(f"_{unit}" if unit else "").split("_")
    return " ".join("IoU" if word == "iou" else word for word in words)


def with_unit(value: float, objective: ObjectiveInfo) -> str:
    """A value of an objective, e.g. ``0.412 ms``."""
    return f"{number(value)} {objective.unit}".rstrip()
