"""Make the tables of results in the READMEs from the recorded rows.

``python -m experiments.readme_table`` writes the tables; with ``--check`` it only lists the pages
whose table is out of date.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.configuration import Configurations, lost_commits
from experiments.record import ROOT, Provenance, Row, read_report, read_rows
from hwnas.atomic import write_text

__all__ = [
    "across",
    "caveats",
    "crosstab",
    "filled",
    "headline_table",
    "headlines",
    "latest",
    "markdown",
    "other_files",
]

FOLDER = Path(__file__).parent
START, END = "<!-- results -->", "<!-- /results -->"
NOTHING = "Not recorded yet."
ANSWERS, OBSERVATIONS = "results.jsonl", "observations.jsonl"


@dataclass(frozen=True)
class Headline:
    """Line of the table of all experiments, from headlines.toml.

    Attributes:
        question: Question, in words.
        wanted: Goal that was set.
        experiment: Folder under ``experiments``.
        metric: Metric of the recorded row.
        subject: Subject of the recorded row.
        file: File of the recorded row, in that folder.
        baseline: Name of the strongest simple baseline, e.g. ``"ridge"``.
        baseline_metric: Metric of the baseline's row in the same file; ``metric`` if None.
        baseline_subject: Subject of the baseline's row; if it is None, the number itself is a ratio
            to the baseline.
        chosen: Whether the main README shows the line, which is then understandable on its own.
    """

    question: str
    wanted: str
    experiment: str
    metric: str
    subject: str
    baseline: str
    file: str = ANSWERS
    baseline_metric: str | None = None
    baseline_subject: str | None = None
    chosen: bool = False


def headlines() -> list[Headline]:
    """Return the lines of the table of all experiments, in its order."""
    tables = tomllib.loads((FOLDER / "headlines.toml").read_text(encoding="utf-8"))
    return [Headline(**table) for table in tables["headline"]]


def latest(rows: Sequence[Row], by_case: bool = False) -> list[Row]:
    """Return the rows of the configuration that was recorded last.

    Args:
        rows: Rows of an experiment.
        by_case: Whether each case, the first word of a subject, has a configuration of its own.
    """
    cases: dict[str, list[Row]] = {}
    for row in rows:
        if row.provenance:
            cases.setdefault(row.subject.split()[0] if by_case else "", []).append(row)
    found = []
    for own in cases.values():
        _, last = max((r.provenance.date, r.provenance.config) for r in own if r.provenance)
        found += [row for row in own if row.provenance and row.provenance.config == last]
    return found


def recorded(folder: Path, file: str = ANSWERS) -> list[Row]:
    """Return the rows of an experiment that the tables show."""
    return latest(read_rows(folder / file), folder.name in BY_CASE)


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of the median over seeds of each metric and subject, with its provenance."""
    if not rows:
        return NOTHING
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
    """Return a table of medians over seeds: lines are metrics and cases, columns are methods.

    The subjects of the rows are ``"case method"``.
    """
    if not rows:
        return NOTHING
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


def across(rows: Sequence[Row]) -> str:
    """Return a table of medians over seeds with ranges: lines are subjects, columns are metrics."""
    if not rows:
        return NOTHING
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        groups.setdefault(row.subject, {}).setdefault(row.metric, []).append(row)
    metrics = list(dict.fromkeys(row.metric for row in rows))
    lines = [f"| of | {' | '.join(metrics)} |", f"|---|{'---|' * len(metrics)}"]
    lines += [
        f"| {subject} | "
        + " | ".join(_cell(found[m]) if m in found else "-" for m in metrics)
        + " |"
        for subject, found in groups.items()
    ]
    return "\n".join([*lines, "", _source(rows)])


_ABSOLUTE = ("ms", "us", "s")
"""Units whose numbers mean nothing without the machine."""

TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "accuracy_predictor": crosstab,
    "energy_search": across,
    "evolution": crosstab,
    "gemm": crosstab,
    "hybrid_latency": crosstab,
    "kernels": across,
    "latency_zoo": crosstab,
    "on_device_finetuning": crosstab,
    "peak_memory": crosstab,
    "precropping": crosstab,
    "predictor_intervals": crosstab,
    "predictors": crosstab,
    "ranking": across,
    "search_quality": crosstab,
    "sparsity": crosstab,
    "spec_sheets": crosstab,
    "text_predictor": crosstab,
    "tflite_micro": crosstab,
}
"""Tables of the experiments that do not use `markdown`."""
BY_CASE = ("int8", "photographs", "precision_front")
"""Experiments whose configurations each belong to one case."""


def headline_table(lines_of: Sequence[Headline], above: str = "", folder: Path = FOLDER) -> str:
    """Return the table of some headlines, from the recorded rows.

    Args:
        lines_of: Headlines.
        above: Relative path from the page of the table to the folders of the experiments.
        folder: Folder of the experiments.
    """
    lines = [
        "| question | goal | result: median (range) | strongest simple baseline | recorded in |",
        "|---|---|---|---|---|",
    ]
    for headline in lines_of:
        rows = recorded(folder / headline.experiment, headline.file)
        group = [r for r in rows if (r.metric, r.subject) == (headline.metric, headline.subject)]
        if not group:
            continue
        seeds = f"; {_seeds(group)} seeds" if _seeds(group) > 1 else ""
        found = f"{_median(group)} ({_range(group)}{seeds})".replace("(-)", "(1 seed)")
        if group[0].unit in _ABSOLUTE and group[-1].provenance:
            found += f", on {group[-1].provenance.device}"
        place = f"[{headline.experiment}]({above}{headline.experiment}/README.md)"
        of = headline.baseline_metric or headline.metric, headline.baseline_subject
        rival = [row for row in rows if (row.metric, row.subject) == of]
        baseline = f"{headline.baseline}: {_median(rival)}" if rival else headline.baseline
        lines.append(
            f"| {headline.question} | {headline.wanted} | {found} | {baseline} | {place} |"
        )
    return "\n".join(lines)


def filled(text: str, table: str) -> str:
    """Return a page with the table between its markers, or unchanged if it has no markers."""
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


def _cell(group: Sequence[Row]) -> str:
    """Return the median, followed by the range where there is one."""
    spread = _range(group)
    return _median(group) if spread == "-" else f"{_median(group)} ({spread})"


def _seeds(group: Sequence[Row]) -> int:
    return len({row.seed for row in group})


def _source(rows: Sequence[Row]) -> str:
    found = sorted((row.provenance for row in rows if row.provenance), key=lambda p: p.date)
    last = found[-1]
    libraries = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    devices = "; and on ".join(dict.fromkeys(p.device for p in found))
    commits = ", ".join(dict.fromkeys(p.commit for p in found))
    return (
        f"Last recorded {last.date[:10]} on {devices}; {libraries}; "
        f"commit {commits}, configuration {last.config}."
    )


def caveats(folder: Path, rows: Sequence[Row], observed: Sequence[Row] = ()) -> str:
    """Return the caveats of rows that their source line does not state.

    Args:
        folder: Folder of the rows.
        rows: Rows that a table shows.
        observed: Observations from which they were computed, possibly on another machine.

    Returns:
        Paragraphs: on which other devices the observations were measured, what has changed in the
        configuration since, and which commits are lost.
    """
    found = [row.provenance for row in rows if row.provenance]
    notes = []
    measured = dict.fromkeys(row.provenance.device for row in observed if row.provenance)
    if measured.keys() - {p.device for p in found}:
        notes.append(f"Measured on {'; and on '.join(measured)}; answers computed as said above.")
    notes += [
        f"Superseded: recorded under an earlier configuration. Since then: {changed}."
        for changed in _superseded(folder, rows)
    ]
    return "".join(f"\n\n{note}" for note in [*notes, *_lost(folder, found)])


def _superseded(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Return what has changed in the configurations of rows since they were recorded."""
    known = Configurations(folder)
    hashes = dict.fromkeys(row.provenance.config for row in rows if row.provenance)
    found = [known.get(hashed) for hashed in hashes]
    return [each.superseded for each in found if each and each.superseded]


def _lost(folder: Path, found: Sequence[Provenance]) -> list[str]:
    """Return a note about lost commits, for the page of a folder; an empty list if none is lost."""
    lost = sorted({provenance.commit for provenance in found} & lost_commits().keys())
    above = "../" * len(folder.relative_to(FOLDER).parts)
    why = f"[lost_commits.toml]({above}lost_commits.toml) says why."
    return [f"Commits that cannot be looked up: {', '.join(lost)}; {why}"] if lost else []


def other_files(folder: Path) -> str:
    """Return a table of an experiment's files of rows and reports that have no table of their own.

    Args:
        folder: Folder of the experiment; files in subfolders that have a page are left out.
    """
    own = {folder / ANSWERS, folder / OBSERVATIONS}
    lines: list[str] = []
    notes: list[str] = []
    shown: list[Provenance] = []
    for file in sorted(set(folder.rglob("*.json*")) - own):
        above = [parent for parent in file.parents if (parent / "README.md").exists()]
        report = read_report(file) if file.suffix == ".json" else None
        rows = latest(read_rows(file)) if file.suffix == ".jsonl" else []
        found = [report] if report else [row.provenance for row in rows if row.provenance]
        if above[0] != folder or not found:
            continue
        name = file.relative_to(folder).as_posix()
        size = f"{len(rows):,} rows" if rows else "a report"
        commits = ", ".join(sorted({p.commit for p in found}))
        devices = "; ".join(sorted({p.device for p in found}))
        date = max(p.date for p in found)[:10]
        lines.append(f"| `{name}` | {size} | {date} | {devices} | {commits} |")
        notes += [
            f"`{name}` is superseded: since then {changed}."
            for changed in _superseded(file.parent, rows)
        ]
        shown += found
    if not lines:
        return ""
    title = ["| file | holds | last recorded | on | commits |", "|---|---|---|---|---|"]
    return "\n\n".join(["\n".join([*title, *lines]), *notes, *_lost(folder, shown)])


def pages() -> dict[Path, str]:
    """Return the table of each page, from the recorded rows."""
    chosen = [headline for headline in headlines() if headline.chosen]
    found = {
        ROOT / "README.md": headline_table(chosen, "experiments/"),
        FOLDER / "README.md": headline_table(headlines()),
    }
    for page in sorted(FOLDER.glob("*/**/README.md")):
        table = TABLES.get(page.parent.name, markdown)
        rows = recorded(page.parent)
        observed = recorded(page.parent, OBSERVATIONS)
        others = other_files(page.parent)
        answers = table(rows) + caveats(page.parent, rows, observed) if rows or not others else ""
        found[page] = "\n\n".join(filter(None, (answers, others)))
    return found


def old_pages() -> dict[Path, str]:
    """Return the pages whose table is out of date, with their new text."""
    old = {}
    for page, table in pages().items():
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if filled(text, table) != text:
            old[page] = filled(text, table)
    return old


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page is outdated"
    )
    check: bool = parser.parse_args().check
    old = old_pages()
    for page, text in old.items():
        if not check:
            write_text(page, text)
        print(f"{page.relative_to(ROOT)}: {'old' if check else 'written'}")
    sys.exit(bool(check and old))


if __name__ == "__main__":
    main()
