"""Command that builds a cascade of two finalists of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hwnas.cli.app import NETWORKS, Json, RunPath, app, out, print_json

if TYPE_CHECKING:
    from hwnas.stages.deployment.cascade import CascadeOption, Cascading

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
    as_json: Json = False,
) -> None:
    """Package two finalists as a cascade: the big one runs where the small one is unsure."""
    from hwnas.experiment import cascade

    found = cascade(run, target_accuracy, to, margin, target, save)
    if as_json:
        print_json(found.to_json())
        return
    _show(run, found)


def _show(run: Path, found: Cascading) -> None:
    from hwnas.terminal import table_of

    costs = found.costs
    columns = [
        "",
        "to big network",
        "validation accuracy",
        "test accuracy",
        f"{costs.name} {costs.unit}",
        "mean ms",
    ]
    ways = {"cascade": found.cascade, "best single": found.single}
    rows = [_row(name, way) for name, way in ways.items() if way is not None]
    rows += [
        _row(n, w) for n, w in zip(("small network", "big network"), found.parts, strict=False)
    ]
    title = f"Accuracy {found.target_accuracy:g} on {found.target}"
    out.print(table_of(columns, rows, title))
    out.print(
        f"accuracies: evaluated, with 95% intervals; {costs.name}: "
        f"{_SOURCES[costs.name, costs.kind]}; that of the cascade is modelled from these",
        style="dim",
        soft_wrap=True,
    )
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


def _row(name: str, way: CascadeOption) -> list[str]:
    from hwnas.terminal import metric_text

    share = f"{way.test.share:.1%}" if "->" in way.name else "-"
    tallies = (way.validation, way.test)
    accuracies = [metric_text(tally.accuracy, tally.interval.ends) for tally in tallies]
    mean = "-" if way.measured_ms is None else f"{way.measured_ms.p50:.3g}"
    return [f"{name}: {way.name}", share, *accuracies, f"{way.expected:.3g}", mean]
