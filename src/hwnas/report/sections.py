"""Sections of the page below its header; a section without data says why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import plotly.graph_objects as go

from hwnas.report import plots, tables
from hwnas.report.data import CalibrationRow, Finalist, ReportData
from hwnas.report.figure import finalist_colours
from hwnas.report.front import pareto_front
from hwnas.report.markup import Html, element, join
from hwnas.report.pictures import architecture_lines, stages_picture
from hwnas.report.quantities import count, metric_name, number, score, with_unit

__all__ = [
    "compute",
    "finalists",
    "learned",
    "next_steps",
    "pictures",
    "progress",
    "provenance",
    "trade_off",
    "trust",
    "warnings",
]


def finalists(data: ReportData) -> Html:
    """Return the table of finalists."""
    if not data.finalists:
        return _empty(
            "", "No network has been tested and exported yet; resume the run to finish it."
        )
    verdict = [] if data.verdict is None else [element("p", data.verdict)]
    table = element("div", tables.finalists_table(data), class_="card")
    return join([table, *_paths(data), *verdict])


def _paths(data: ReportData) -> Iterable[Html]:
    """Yield a paragraph on the path of each task, for networks that do several tasks."""
    several = [each for each in data.finalists if each.path_macs]
    if several:
        costs = "; ".join(
            f"{each.name}: "
            + ", ".join(f"{task} {count(macs)}" for task, macs in each.path_macs.items())
            for each in several
        )
        yield element("p", f"Multiply-accumulates of the path of one task alone, counted: {costs}.")


def warnings(data: ReportData) -> Html:
    """Return the warnings to the reader; empty if there are none."""
    if not data.warnings:
        return Html("")
    items = (element("li", warning) for warning in data.warnings)
    return element("div", element("strong", "Warnings"), element("ul", *items), class_="warnings")


def trade_off(data: ReportData) -> Iterable[Html]:
    """Yield plots of the main objective against each other one, and the front as a table."""
    if not data.trials:
        yield _empty("Pareto front", "No trial has finished.")
        return
    if not data.other_objectives:
        yield _empty("Pareto front", "The search had one objective, so there is no trade-off.")
    for objective in data.other_objectives:
        yield _figure(
            pareto_front(data, objective),
            "Each point is a candidate with the values that the search used (point at it for its "
            "architecture). A star is such a point of a finalist; the diamond joined to it is the "
            "same network after fine-tuning, evaluated on the test split and measured on the "
            "target, or a cross if it breaks a limit. Bars are 95\u00a0% confidence intervals "
            "(Wilson intervals for accuracies).",
        )
    front = sum(trial.on_front for trial in data.trials)
    if front:
        summary = element("summary", f"Table of the {front} candidates of the front")
        yield element("details", summary, element("div", tables.front_table(data), class_="card"))


def trust(data: ReportData) -> Iterable[Html]:
    """Yield plots of predicted against measured costs and of validation against test scores."""
    for noun in dict.fromkeys(row.noun for row in data.calibration):
        rows = [row for row in data.calibration if row.noun == noun]
        yield _figure(
            plots.calibration(rows),
            "Each network that was left out in turn was predicted from the other measured "
            "networks; each finalist was predicted before it was measured. Bars are 90\u00a0% "
            "prediction intervals, whose upper end has to meet a limit; they are log-normal, "
            "because errors of costs are factors." + _finalists_error(rows),
        )
    if not data.calibration:
        yield _empty(
            "Predicted against measured latency", "No network was both predicted and measured."
        )
    if not data.finalists:
        yield _empty("Validation minus test", "No finalist has been tested.")
        return
    yield _figure(
        plots.generalisation(data),
        "The finalists were chosen by their validation score, so a difference above zero shows how "
        "much this choice overestimates them; bars are 95\u00a0% confidence intervals, n is the "
        "number of images of each split.",
    )


def _finalists_error(every: Sequence[CalibrationRow]) -> str:
    rows = [row for row in every if row.role == "finalist"]
    return f" Finalists alone: {plots.calibration_error(rows)}." if rows else ""


def progress(data: ReportData) -> Iterable[Html]:
    """Yield plots of the search and the training over time."""
    point = ", ".join(
        f"{metric_name(o.metric, o.unit)} {with_unit(data.reference_point[o.label], o)}"
        for o in data.objectives
        if o.label in data.reference_point
    )
    kinds = " and ".join(sorted({objective.kind for objective in data.objectives}))
    compared = (
        "compared with random search with the same evaluator"
        if data.baseline_trials
        else "random search was not run for comparison"
    )
    search = _figure_or_reason(
        data,
        bool(data.hypervolume),
        plots.hypervolume,
        f"Size of the region that the candidates found so far dominate, by {kinds} values, up to "
        f"the reference point ({point}); {_counting(data)}{compared}.",
        (
            "Hypervolume over trials",
            "No hypervolume was computed: it needs a finished trial that meets the limits.",
        ),
    )
    training = _figure_or_reason(
        data,
        bool(data.training),
        plots.training_curves,
        "Measured on training batches; the largest and the smallest network are the extremes of "
        "all networks that share these weights.",
        (
            "Training of the supernet",
            "No supernet was trained in this run: it was reused, or candidates were trained alone.",
        ),
    )
    yield element("div", search, training, class_="pair")


def learned(data: ReportData) -> Iterable[Html]:
    """Yield a plot of each distribution over networks that a strategy has learned."""
    for each in data.learned:
        cost = (
            ""
            if each.expected_cost is None
            else f" The expected cost is {each.expected_cost:.3g} times the mean of the space."
        )
        if each.cost_limit is not None:
            cost += f" At most {each.cost_limit:g} times was asked for."
        yield _figure(
            plots.learned_choices(each),
            "Probability of each option of each choice. The weight of the cost against the loss "
            f"is {each.cost_weight:.3g}.{cost} The most probable network is {each.network}.",
        )


def _counting(data: ReportData) -> str:
    """Describe which candidates the hypervolume counts if there are limits."""
    if all(objective.limit is None for objective in data.objectives):
        return ""
    return "only candidates that meet the limits count, finalists with their measured values; "


def pictures(data: ReportData) -> Iterable[Html]:
    """Yield each finalist's stages, or its choices if its space has no such picture."""
    if not data.finalists:
        yield _empty("Pictures of the finalists", "No network is a finalist yet.")
        return
    drawn = [stage.channels for f in data.finalists for stage in f.stages]
    colours = finalist_colours(data)
    for finalist in data.finalists:
        title = element(
            "h3",
            element("span", class_="dot", style=f"background:{colours[finalist.id]}"),
            f"{finalist.name}: {_summary(finalist)}",
        )
        if finalist.stages:
            label = f"Stages of network {finalist.id}"
            svg = stages_picture(finalist.stages, max(drawn), colours[finalist.id], label)
            picture = element("div", _whole_network(finalist), svg, class_="scroll")
        else:
            picture = tables.choices_table(finalist)
        yield element("div", title, picture, class_="card")
    if drawn:
        yield element(
            "p",
            "Input at the left, output at the right. Each box is a block: its height shows the "
            "channels of its stage (ch), its width the expansion ratio (e), its number and shade "
            "the kernel size; a tapering box halves the resolution (1/2).",
            class_="soft",
        )


def _summary(finalist: Finalist) -> str:
    text = f"test {metric_name(finalist.metric)} {score(finalist.test)}"
    if finalist.measurement is None:
        return text
    return f"{text}, {number(finalist.measurement.latency_ms)} ms measured"


def _whole_network(finalist: Finalist) -> Html:
    """Return the choices outside numbered stages, such as resolution and training settings."""
    whole = {
        name: option
        for name, option in finalist.architecture.items()
        if not re.match(r"[a-z]+\d+\.", name)
    }
    return element("small", *architecture_lines(whole))


def compute(data: ReportData) -> Iterable[Html]:
    """Yield the seconds of each stage, and the number of targets from which a supernet pays."""
    if data.stage_times:
        caption = f"Measured on the machine that ran the search. {data.break_even}".rstrip()
        yield _figure(plots.stage_seconds(data), caption)
        yield element("div", tables.stages_table(data), class_="card")
    else:
        yield _empty("Seconds by stage", f"No stage has finished. {data.break_even}".rstrip())


def provenance(data: ReportData) -> Iterable[Html]:
    """Yield the hardware, the versions and the recipe."""
    for title, values in (("Hardware", data.hardware), ("Versions", data.versions)):
        if values:
            shown = tables.properties_table(values, "property", "value")
            yield element("div", element("h3", title), shown, class_="card")
        else:
            yield _empty(title, "The run did not record this.")
    if data.recipe_toml:
        recipe = element("pre", element("code", data.recipe_toml))
        yield element("details", element("summary", "Recipe of this run"), recipe, open="")
    else:
        yield _empty("Recipe", "The run did not record this.")


def next_steps(data: ReportData) -> Html:
    """Return the commands to try next."""
    if not data.next_commands:
        return _empty("", "No further commands are suggested.")
    return element("pre", element("code", "\n".join(data.next_commands)))


def _figure_or_reason(
    data: ReportData,
    there: bool,
    draw: Callable[[ReportData], go.Figure],
    caption: str,
    otherwise: tuple[str, str],
) -> Html:
    return _figure(draw(data), caption) if there else _empty(*otherwise)


def _figure(figure: go.Figure, caption: str) -> Html:
    """Return a plot whose title is text of the page, so that it wraps on narrow screens."""
    title = Html(figure.layout.title.text)
    figure.layout.title = None
    encoded = figure.to_json().replace("<", "\\u003c")  # no text can end the script element
    return element(
        "figure",
        element("h3", title),
        element("div", class_="plot", style=f"height:{figure.layout.height}px"),
        element("script", Html(encoded), type="application/json"),
        element("figcaption", caption),
    )


def _empty(title: str, reason: str) -> Html:
    heading = [element("h3", title)] if title else []
    return element("div", *heading, reason, class_="empty")
