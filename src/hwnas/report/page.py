"""HTML page of the report: one self-contained file for any screen, offline and on paper."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from plotly.offline import get_plotlyjs

from hwnas import __version__, atomic
from hwnas.report import sections
from hwnas.report.data import Finalist, ReportData
from hwnas.report.markup import Html, element
from hwnas.report.quantities import count, metric_name, number, seconds
from hwnas.report.style import SCRIPT, STYLE

__all__ = ["render", "write_report"]

POLICY = (  # under this policy a browser makes no request, whatever the data contain
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page atomically and return its path.

    Raises:
        StorageError: The file cannot be written; an older file is not changed.
    """
    atomic.write_text(path, render(data))
    return path


def render(data: ReportData) -> str:
    """Render the page; it has about 5 MB, nearly all of it the plotting library."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{data.name} · hwnas"),
        element("style", Html(STYLE)),
    )
    library = element("script", Html(get_plotlyjs()), charset="utf-8")
    body = element("body", *_sections(data), library, element("script", Html(SCRIPT)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _sections(data: ReportData) -> Iterable[Html]:
    yield element("header", *_header(data))
    yield _section("Finalists", sections.finalists(data), sections.warnings(data))
    yield _section("Trade-off", *sections.trade_off(data))
    yield _section("Errors of the predictions", *sections.trust(data))
    yield _section("Progress of the search", *sections.progress(data))
    if data.learned:
        yield _section("What the strategy learned", *sections.learned(data))
    yield _section("Architectures", *sections.pictures(data))
    yield _section("Time", *sections.compute(data))
    yield _section("Provenance", *sections.provenance(data))
    yield _section("Next steps", sections.next_steps(data))
    yield element("footer", f"Written by hwnas {__version__}. This file works offline.")


def _section(title: str, *parts: Html) -> Html:
    return element("section", element("h2", title), *parts)


def _header(data: ReportData) -> Iterable[Html]:
    yield element("h1", data.name)
    yield element("p", *_headline(data), class_="lead")
    front = sum(trial.on_front for trial in data.trials)
    over = sum(not trial.feasible for trial in data.trials)
    outside = f", {over:,} over a limit" if over else ""
    facts = {
        "task": data.task,
        "target": data.target,
        "search space": f"{data.space}, {count(data.space_size)} networks",
        "trials": f"{len(data.trials):,}, {front:,} on the front{outside}",
        "time": seconds(sum(s.wall_s for s in data.stage_times)) if data.stage_times else "–",
        "started": f"{data.created}, seed {data.seed}",
    }
    items = (element("div", element("dt", k), element("dd", v)) for k, v in facts.items())
    yield element("dl", *items, class_="facts")


def _headline(data: ReportData) -> Iterable[str]:
    """Yield a sentence on the outcome: the range of accuracy and latency of the finalists."""
    measured = [f for f in data.finalists if f.measurement]
    if not measured:
        yield f"A search for {data.target}, without a measured finalist so far."
        return
    fastest, slowest = (f(measured, key=lambda found: _latency_ms(found)) for f in (min, max))
    metric = metric_name(fastest.metric)
    networks = "network" if len(measured) == 1 else "networks"
    where = dict.fromkeys(each.measurement.target for each in measured if each.measurement)
    yield f"{len(measured)} measured {networks} for {', '.join(where)}: "
    yield element("strong", f"test {metric} {number(fastest.test.mean)}")
    yield " at "
    yield element("strong", f"{number(_latency_ms(fastest))} ms")
    if slowest is not fastest:
        yield " up to "
        yield element("strong", f"{number(slowest.test.mean)}")
        yield " at "
        yield element("strong", f"{number(_latency_ms(slowest))} ms")
        yield f", a span of {_latency_ms(slowest) / _latency_ms(fastest):.1f} × in speed"
    if broken := sum(each.limit_state in ("within noise", "broken") for each in measured):
        yield f"; {broken} of them do{'es' * (broken == 1)} not meet a limit as measured"
    yield "."


def _latency_ms(finalist: Finalist) -> float:
    assert finalist.measurement is not None
    return finalist.measurement.latency_ms
