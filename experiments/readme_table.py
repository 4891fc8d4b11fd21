"""Make the tables of results in the READMEs from the recorded rows.

``python -m experiments.readme_table`` writes them; with ``--check`` it only says which are old.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.record import ROOT, Row, read_rows
from hwnas.atomic import write_text

__all__ = ["crosstab", "filled", "headline_table", "latest", "markdown"]

FOLDER = Path(__file__).parent
START, END = "<!-- results -->", "<!-- /results -->"
MISSING = "not recorded yet"


@dataclass(frozen=True)
class Headline:
    """A line of the table in the main README.

    Attributes:
        question: In words.
        wanted: What was set as the goal.
        experiment: Folder under ``experiments``.
        metric: Of the recorded row.
        subject: Of the recorded row.
    """

    question: str
    wanted: str
    experiment: str
    metric: str
    subject: str


HEADLINES = (
    Headline(
        "Test error against latency: hypervolume over hand-scaled MobileNetV3, equal training time",
        "above 1",
        "fashion_mnist",
        "hypervolume_ratio",
        "hwnas / hand-scaled",
    ),
    Headline(
        "The same over random search on the same supernet",
        "above 1",
        "fashion_mnist",
        "hypervolume_ratio",
        "hwnas / random",
    ),
    Headline(
        "CIFAR-10, latency at equal accuracy: published networks over the best of two spaces",
        "at least 1.5",
        "cifar10",
        "speed_at_equal_accuracy",
        "best / published",
    ),
    *(
        Headline(
            f"Hypervolume of a model made elastic over its widths, equal minutes: {name}",
            "above 1",
            "own_models",
            "hypervolume_ratio",
            f"{model} elastic / scratch",
        )
        for model, name in (
            ("cnn", "a plain CNN"),
            ("resnet", "ResNet-20"),
            ("mobilenet", "a MobileNet"),
            ("convnext", "a ConvNeXt"),
            ("vit", "a vision transformer"),
        )
    ),
    Headline(
        "Ranking by the supernet: Kendall tau over that between two training seeds",
        "at least 0.85",
        "ranking",
        "tau_quotient",
        "supernet",
    ),
    Headline(
        'The same where the smallest network is not in every step (train.sampling = "teacher")',
        "at least 0.85",
        "ranking",
        "tau_quotient",
        "supernet-teacher",
    ),
    Headline(
        "Accuracy lost by trusting the supernet's top 3",
        "small",
        "ranking",
        "regret_top3",
        "supernet",
    ),
    Headline(
        "Latency of unseen networks: Spearman after 20 timed ones",
        "at least 0.95",
        "predictor",
        "spearman",
        "default",
    ),
    Headline("The same: median error", "at most 8 %", "predictor", "median_error", "default"),
    Headline(
        "Networks of convolution and attention, 224x224 images: Spearman after 20 timed ones",
        "over 0.97",
        "hybrid_latency",
        "spearman",
        "large default",
    ),
    Headline(
        "The same: Spearman of multiply-accumulates",
        "less",
        "hybrid_latency",
        "spearman",
        "large macs",
    ),
    Headline(
        "Hypervolume lost after 100 evaluations, NAS-Bench-201: over the best rival (3 devices)",
        "at most 0.6",
        "search_quality",
        "lost_ratio",
        "nb201-calibrated guided/best-rival",
    ),
    Headline(
        "The same over Optuna's TPE",
        "at most 0.35",
        "search_quality",
        "lost_ratio",
        "nb201-calibrated guided/tpe",
    ),
    Headline(
        "The same with nothing known of latencies, over TPE",
        "at most 0.7",
        "search_quality",
        "lost_ratio",
        "nb201-unknown guided/tpe",
    ),
    Headline(
        "Once-for-all's table, accuracy x operations: over the best rival",
        "below 1",
        "search_quality",
        "lost_ratio",
        "ofa-macs guided/best-rival",
    ),
    Headline(
        "Tensorised NSGA-II, population 10,000, three objectives: speed over pymoo's",
        "over 100",
        "evolution",
        "individuals a second",
        "nsga2-10000 hwnas/pymoo",
    ),
    Headline(
        "Networks and their recipes searched together: hypervolume over networks alone",
        "above 1",
        "joint_recipe",
        "hypervolume_ratio",
        "joint / fixed",
    ),
    Headline(
        "A runtime and format that nobody has seen, 10 measurements: Spearman (range over seven)",
        "over 0.97",
        "latency_zoo",
        "spearman",
        "mean default-10",
    ),
    Headline("The same: median error", "under 6 %", "latency_zoo", "median_ape", "mean default-10"),
    Headline(
        "The same: share of measurements inside the 90 % interval",
        "0.85 to 0.95",
        "latency_zoo",
        "coverage90",
        "mean default-10",
    ),
    Headline(
        "FBNet on unseen devices, 20 measurements: Spearman (range over six device sets)",
        "over 0.87",
        "predictors",
        "spearman",
        "fbnet-mean default",
    ),
    Headline(
        "NAS-Bench-201 on three unseen devices, 10 measurements: Spearman",
        "over 0.965",
        "predictors",
        "spearman",
        "nb201-full-10 default",
    ),
    Headline(
        "Energy on a Raspberry Pi 5, framework unseen, 10 measurements: error (range over three)",
        "under 7.5 %",
        "predictors",
        "mape",
        "energy-mean default",
    ),
    Headline(
        "Peak memory in ONNX Runtime, 10 measurements: median error",
        "under 10 %",
        "peak_memory",
        "median_error",
        "large-224 cpu-onnxruntime-fp32-b1-t1 predictor",
    ),
    Headline(
        "Matrix products of unseen ranges of sizes: error",
        "under 10 %",
        "gemm",
        "mape",
        "cpu-onnxruntime-fp32-b1-t1 held-out model",
    ),
    Headline(
        "Engine beside evaluation, 12 choices, guided",
        "at most 15 ms",
        "engine",
        "ms_per_trial",
        "guided-12",
    ),
    Headline(
        "The same with NSGA-II, 45 choices",
        "at most 30 ms",
        "engine",
        "ms_per_trial",
        "nsga2-45",
    ),
    Headline("Memory of the whole job", "under 4,000 MB", "engine", "peak_pss", "job"),
    Headline(
        "Training step of the supernet over that of the extracted network, 1 thread",
        "at most 1.15",
        "training_step",
        "step_ratio",
        "cpu-t1",
    ),
)


def latest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the configuration that was recorded last."""
    dated = [(row.provenance.date, row.provenance.config) for row in rows if row.provenance]
    config = max(dated)[1] if dated else None
    return [row for row in rows if row.provenance and row.provenance.config == config]


def markdown(rows: Sequence[Row]) -> str:
    """A table of the median over seeds of each metric and subject, and where it comes from."""
    if not rows:
        return MISSING[0].upper() + MISSING[1:] + "."
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.metric, row.subject), []).append(row)
    lines = [
        "| metric | of | median | range over seeds | seeds | n |",
        "|---|---|---:|---|---:|---:|",
    ]
    lines += [
        f"| {metric} | {subject} | {_median(group)} | {_range(group)} | {_seeds(group)} | "
        f"{' '.join(dict.fromkeys(f'{row.n:,}' for row in group))} |"
        for (metric, subject), group in groups.items()
    ]
    return "\n".join([*lines, "", _source(rows)])


def crosstab(rows: Sequence[Row]) -> str:
    """The same of subjects ``"case method"``: a line for each metric and case, methods across."""
    if not rows:
        return MISSING[0].upper() + MISSING[1:] + "."
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        case, _, method = row.subject.rpartition(" ")
        groups.setdefault((row.metric, case), {}).setdefault(method, []).append(row)
    methods = list(dict.fromkeys(row.subject.rpartition(" ")[2] for row in rows))
    lines = [
        f"| score | of | {' | '.join(methods)} |",
        f"|---|---|{'---:|' * len(methods)}",
    ]
    lines += [
        f"| {metric} | {case} | "
        + " | ".join(_median(found[m]) if m in found else "-" for m in methods)
        + " |"
        for (metric, case), found in sorted(groups.items(), key=lambda item: item[0][0])
    ]
    return "\n".join([*lines, "", _source(rows)])


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "accuracy_predictor": crosstab,
    "evolution": crosstab,
    "gemm": crosstab,
    "hybrid_latency": crosstab,
    "latency_zoo": crosstab,
    "peak_memory": crosstab,
    "precropping": crosstab,
    "predictors": crosstab,
    "search_quality": crosstab,
    "spec_sheets": crosstab,
}
"""Experiments whose table is not `markdown`."""


def headline_table(folder: Path = FOLDER) -> str:
    """The table of the main README."""
    lines = ["| question | wanted | found | recorded in |", "|---|---|---|---|"]
    for headline in HEADLINES:
        rows = latest(read_rows(folder / headline.experiment / "results.jsonl"))
        group = [r for r in rows if (r.metric, r.subject) == (headline.metric, headline.subject)]
        found = MISSING
        if group:
            seeds = f"; {_seeds(group)} seeds" if _seeds(group) > 1 else ""
            found = f"{_median(group)} ({_range(group)}{seeds})".replace("(-)", "(1 seed)")
        place = f"[{headline.experiment}](experiments/{headline.experiment}/README.md)"
        lines.append(f"| {headline.question} | {headline.wanted} | {found} | {place} |")
    return "\n".join(lines)


def filled(text: str, table: str) -> str:
    """A page with the table between its markers, or as it was if it has no markers."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{START}\n{table}\n{END}{after}" if start and end else text


def _values(group: Iterable[Row]) -> list[float]:
    return [row.value for row in group if row.value is not None]


def _number(value: float, unit: str) -> str:
    if unit == "fraction":
        return f"{100 * value:.2f} %"
    plain = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return plain if unit in ("", "ratio", "tau", "rho") else f"{plain} {unit}"


def _median(group: Sequence[Row]) -> str:
    values = _values(group)
    return _number(median(values), group[0].unit) if values else "none"


def _range(group: Sequence[Row]) -> str:
    values, unit = _values(group), group[0].unit
    if len(group) == 1 and {"least", "most"} <= group[0].spread.keys():
        values = [group[0].spread["least"], group[0].spread["most"]]
    if len(values) < 2:
        return "-"
    return f"{_number(min(values), unit)} to {_number(max(values), unit)}"


def _seeds(group: Sequence[Row]) -> int:
    return len({row.seed for row in group})


def _source(rows: Sequence[Row]) -> str:
    last = max((row.provenance for row in rows if row.provenance), key=lambda p: p.date)
    libraries = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    return (
        f"Last recorded {last.date[:10]} on {last.device}; {libraries}; "
        f"commit {last.commit}, configuration {last.config}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is old")
    check: bool = parser.parse_args().check
    pages = {ROOT / "README.md": headline_table()}
    for page in sorted(FOLDER.glob("*/README.md")):
        table = TABLES.get(page.parent.name, markdown)
        pages[page] = table(latest(read_rows(page.with_name("results.jsonl"))))
    old = []
    for page, table in pages.items():
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if filled(text, table) == text:
            continue
        old.append(page.relative_to(ROOT))
        if not check:
            write_text(page, filled(text, table))
    for page in old:
        print(f"{page}: {'old' if check else 'written'}")
    sys.exit(bool(check and old))


if __name__ == "__main__":
    main()
