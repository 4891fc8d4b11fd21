"""Command that evaluates the files of a network on images with targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hwnas.cli.app import NETWORKS, Json, app, out, print_json

if TYPE_CHECKING:
    from hwnas.stages.deployment.evaluation import FileEvaluation, NetworkEvaluation


@app.command(rich_help_panel=NETWORKS)
def evaluate(
    source: Annotated[
        Path, typer.Argument(metavar="BUNDLE|RUN|MODEL.onnx", help="Source of the network")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images with targets, as data.source of a recipe, or a run; a run has its own"
        ),
    ] = None,
    split: Annotated[
        Literal["test", "validation", "train", "all"],
        typer.Option(help="Images to evaluate on"),
    ] = "test",
    pick: Annotated[
        str | None, typer.Option(help="Network of a run: knee, fastest, most-accurate or an id")
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate every file of a network on images; exit with status 1 if one of them fails."""
    from hwnas.api.evaluation import evaluate

    found = evaluate(source, data, split=split, pick=pick)
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)
    if any(each.failure for each in found.files):
        raise typer.Exit(1)


def _show(found: NetworkEvaluation) -> None:
    from hwnas.cli.terminal import table_of

    evaluated = [each for each in found.files if each.qualities]
    if evaluated:
        metrics = [quality.metric for quality in evaluated[0].qualities]
        columns = ["file", "computed in", metrics[0], "loss", *metrics[1:]]
        title = f"{found.n:,} of {found.of:,} images ({found.split})"
        out.print(table_of(columns, list(map(_row, evaluated)), title, text_columns=2))
    for each in found.files:
        if each.not_run:
            out.print(f"{each.file}: not run here: {each.not_run}", soft_wrap=True, markup=False)
        elif each.failure:
            out.print(f"✗ {each.file}: {each.failure}", soft_wrap=True, markup=False)


def _row(each: FileEvaluation) -> list[str]:
    from hwnas.cli.terminal import metric_text

    first, *others = each.qualities
    return [
        each.file,
        each.computed_in,
        metric_text(first.value, first.interval.ends),
        "-" if each.is_reference else metric_text(first.loss, first.loss_interval.ends),
        *(metric_text(other.value) for other in others),
    ]
