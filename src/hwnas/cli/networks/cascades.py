"""Command that builds a cascade of two networks of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hwnas.cli.app import NETWORKS, Json, RunPath, app, out, print_json

if TYPE_CHECKING:
    from hwnas.stages.deployment.cascade_result import CascadeOption, Cascading
    from hwnas.stages.deployment.pair_search import PairSearch

_SOURCES = {
    ("latency", "measured"): "measured when the networks were made",
    ("energy", "measured"): "measured now with the hardware's energy counter",
    ("energy", "predicted"): "predicted from the profile of the target",
}


@app.command(rich_help_panel=NETWORKS)
def cascade(
    run: RunPath,
    target_accuracy: Annotated[
        float, typer.Option(help="Accuracy to reach on validation images, e.g. 0.9")
    ],
    to: Annotated[Path, typer.Option("--out", help="Folder to create; must not exist")],
    margin: Annotated[
        float, typer.Option(help="Required distance above --target-accuracy, in standard errors")
    ] = 1.0,
    target: Annotated[
        str | None, typer.Option(help="Target that was added with `hwnas specialise`")
    ] = None,
    save: Annotated[
        Literal["latency", "energy"],
        typer.Option(help="Cost to reduce; energy needs a hardware counter or a calibrated device"),
    ] = "latency",
    among: Annotated[
        Literal["scored", "finalists"],
        typer.Option(
            help="Networks to pair: all that the search scored, of which a few pairs are made and "
            "measured, or the finalists only"
        ),
    ] = "scored",
    pairs: Annotated[
        int, typer.Option(min=1, help="Pairs of scored networks that are made and measured")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Package two networks as a cascade: the big one runs where the small one is unsure."""
    from hwnas.experiment import cascade

    found = cascade(run, target_accuracy, to, margin, target, save, among, pairs)
    if as_json:
        print_json(found.to_json())
        return
    _show(run, found)


def _show(run: Path, found: Cascading) -> None:
    from hwnas.cli.terminal import table_of

    costs = found.costs
    columns = [
        "",
        "to big network",
        "validation accuracy",
        "test accuracy",
        f"{costs.name} {costs.unit}",
        *(["energy mJ"] if costs.name != "energy" else []),
        "mean ms",
    ]
    ways: dict[str, CascadeOption | None]
    ways = {"cascade": found.cascade, "best single": found.single}
    ways |= dict(zip(("small network", "big network"), found.parts, strict=False))
    rows = [_row(name, way, found) for name, way in ways.items() if way is not None]
    if found.search is not None:
        _show_search(found.search, found)
    title = f"Accuracy {found.target_accuracy:g} on {found.target}"
    out.print(table_of(columns, rows, title))
    source = _SOURCES[costs.name, costs.kind]
    if costs.name == "latency" and found.search is not None and found.search.made:
        source = "measured now, all networks in one session"
    out.print(
        f"accuracies: evaluated, with 95% intervals; {costs.name}: {source}; that of the cascade "
        "is modelled from these",
        style="dim",
        soft_wrap=True,
    )
    if found.of_finalists is not None:
        alone = found.of_finalists.cost
        cost = "none reaches it" if alone is None else f"{alone:.3g} {costs.unit}"
        out.print(f"with finalists only, at the same costs: {cost}", style="dim", soft_wrap=True)
    if costs.name != "energy":
        known = f"unknown ({found.energy_unknown.partition(';')[0]})"
        if found.energy != "unknown":
            known = f"{_SOURCES['energy', found.energy]}; that of the cascade is modelled"
        out.print(f"energy: {known}", style="dim", soft_wrap=True, markup=False)
    if found.timed_images:
        out.print(
            f"mean ms: measured in the same session over {found.timed_images} test images, one "
            "at a time, without preprocessing",
            style="dim",
            soft_wrap=True,
        )
    if found.folder is not None:
        out.print(f"cascade  {found.folder}, verified", soft_wrap=True, markup=False)
        out.print(f"next: hwnas run {found.folder} image.png", soft_wrap=True, markup=False)
        return
    reason = "the best single network takes less time (measured)"
    if not found.timed_images:
        reason = f"no cascade is expected to need less {costs.name} than the best single network"
    out.print(f"no cascade was written: at this accuracy {reason}", soft_wrap=True)
    if found.single is not None:
        command = f"hwnas export {run} --pick {found.single.name} --out my-model"
        out.print(f"next: {command}", soft_wrap=True, markup=False)


def _show_search(search: PairSearch, found: Cascading) -> None:
    """Print the chosen pairs, as estimated from the search and as delivered."""
    from hwnas.cli.terminal import table_of

    delivered = {frozenset((pair.small, pair.big)): pair for pair in found.delivered}
    unit, rows = ("ms" if search.predicted == "latency" else "mJ"), []
    for pair in search.pairs:
        real = delivered.get(frozenset((pair.small, pair.big)))
        now = ["-"] * 3
        if real is not None:
            now = [str(real), f"{real.tally.accuracy:.4f}", f"{real.cost:.3g}"]
        estimate = f"{pair.tally.accuracy + search.shift:.4f}"
        rows.append([str(pair), estimate, f"{pair.cost:.3g}", *now])
    columns = ["pair", "estimated accuracy", f"estimated {unit}"]
    columns += ["delivered", "validation accuracy", f"expected {found.costs.unit}"]
    count = search.scored * (search.scored - 1) // 2
    title = f"{count:,} pairs of {search.scored} of {search.networks} scored networks"
    if not rows:
        out.print(f"{title}: none is expected to be better than a single network", soft_wrap=True)
        return
    out.print(table_of(columns, rows, title))
    out.print(
        f"estimated: with the weights of the search and predicted costs; accuracies are shifted by "
        f"{search.shift:+.4f}, the median change of the finalists by fine-tuning",
        style="dim",
        soft_wrap=True,
    )


def _row(name: str, way: CascadeOption, found: Cascading) -> list[str]:
    from hwnas.cli.terminal import metric_text

    share = f"{way.test.share:.1%}" if "->" in way.name else "-"
    tallies = (way.validation, way.test)
    accuracies = [metric_text(tally.accuracy, tally.interval.ends) for tally in tallies]
    costs = [f"{way.expected:.3g}"]
    if found.costs.name != "energy":
        costs.append("unknown" if way.energy_mj is None else f"{way.energy_mj:.3g}")
    mean = "-" if way.measured_ms is None else f"{way.measured_ms.p50:.3g}"
    return [f"{name}: {way.name}", share, *accuracies, *costs, mean]
