"""Draw the figure of the main README from the recorded networks of one job of 45 minutes.

On the left are accuracy and latency of both sides; on the right, the convolutions of the fastest
finalist that is more accurate than every rival.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from experiments.readme_table import latest
from experiments.record import ROOT, Row, read_rows

HERE = Path(__file__).parent
MINUTES = 45
OURS, RIVALS = "#1b6ca8", "#8a8f98"
KINDS = {"conv": "#1b6ca8", "pointwise": "#74add1", "depthwise": "#f4a259"}


def main() -> None:
    known = json.loads((HERE / "configurations.json").read_text(encoding="utf-8"))
    drawn = {name for name, each in known.items() if each["settings"]["minutes"] == MINUTES}
    rows = [
        row
        for row in read_rows(HERE / "observations.jsonl")
        if row.metric == "test_error" and row.provenance and row.provenance.config in drawn
    ]
    rows = latest(rows)
    rows = [row for row in rows if row.seed == min(each.seed for each in rows)]
    ours, rivals = ([r for r in rows if r.details["side"] == s] for s in ("hwnas", "alone"))
    mpl.rcParams.update(
        {
            "svg.hashsalt": "hwnas",
            "svg.fonttype": "none",
            "font.size": 10,
            "axes.spines.right": False,
            "axes.spines.top": False,
        }
    )
    shown = _shown(ours, rivals)
    if "layers" in shown.details:
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(3, 2))
        _network(right, shown)
        _circle(left, shown)
    else:  # rows before November 2026
        figure, left = plt.subplots(figsize=(7, 3.2))
    _front(left, ours, rivals)
    figure.tight_layout()
    path = ROOT / "docs" / "figures" / "photographs.svg"
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    print(path)


def _shown(ours: Sequence[Row], rivals: Sequence[Row]) -> Row:
    """Return the fastest network that makes fewer errors than every rival; else the best one."""
    least = min(_error(row) for row in rivals)
    better = [row for row in ours if _error(row) < least]
    return min(better, key=_latency_ms) if better else min(ours, key=_error)


def _front(axes: Axes, ours: Sequence[Row], rivals: Sequence[Row]) -> None:
    for rows, colour, label in (
        (ours, OURS, "hwnas, one job"),
        (rivals, RIVALS, "MobileNetV3-Small"),
    ):
        x, y = zip(*sorted(map(_point, rows)), strict=True)
        axes.plot(x, y, "o-", color=colour, label=label, linewidth=1.5, markersize=6)
    for row in rivals:
        width = row.subject.rpartition("-w")[2]
        axes.annotate(f"x{width}", _point(row), (4, -12), textcoords="offset points", color=RIVALS)
    axes.set_xlabel("latency of one image on one core, ms")
    axes.set_ylabel("test accuracy, %")
    axes.set_xlim(left=0)
    axes.margins(y=0.12)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left")


def _circle(axes: Axes, row: Row) -> None:
    axes.plot(*_point(row), "o", markersize=13, markerfacecolor="none", markeredgecolor=OURS)


def _network(axes: Axes, row: Row) -> None:
    """Draw each convolution as a box: its height is the side of the output, its width channels."""
    x = 0.0
    layers = row.details["layers"]
    for kind, channels, side in layers:
        width = channels / 16 + 0.3
        axes.bar(x, side, width, bottom=-side / 2, align="edge", color=KINDS[kind], linewidth=0)
        axes.text(x + width / 2, side / 2 + 1.5, str(channels), ha="center", size=7, color="#444")
        x += width + 0.5
    latency_ms, accuracy = _point(row)
    axes.set_title(
        f"the circled network: {row.details['macs'] / 1e6:.3g} M MACs, "
        f"{latency_ms:.2g} ms, {accuracy:.1f} %",
        size=9,
    )
    for name in dict.fromkeys(kind for kind, _, _ in layers):
        axes.bar(0, 0, color=KINDS[name], label=name)
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    axes.set_axis_off()


def _point(row: Row) -> tuple[float, float]:
    """Return latency in milliseconds and accuracy in percent."""
    return _latency_ms(row), 100 * (1 - _error(row))


def _latency_ms(row: Row) -> float:
    return float(row.details["latency_ms"])


def _error(row: Row) -> float:
    assert row.value is not None
    return row.value


if __name__ == "__main__":
    main()
