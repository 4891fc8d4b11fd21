"""Command that evaluates the files of a network on images with targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from hwnas.cli.app import NETWORKS, Json, app, out, print_json

if TYPE_CHECKING:
    from hwnas.stages.deployment.evaluation import FileEvaluation, NetworkEvaluation

_MISTAKEN = 3  # other classes that are shown


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
    by_class: Annotated[
        bool,
        typer.Option("--by-class", help="Also show each class, and what it is mistaken for"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Evaluate every file of a network on images; exit with status 1 if one of them fails."""
    from hwnas.api.evaluation import evaluate

    found = evaluate(source, data, split=split, pick=pick)
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)
        if by_class:
            _show_classes(found)
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


def _show_classes(found: NetworkEvaluation) -> None:
    """Show the answers of the first file that was evaluated, by class."""
    from hwnas.cli.terminal import metric_text, table_of

    file = next((each for each in found.files if each.classes), None)
    if file is None:
        out.print("no classes: only where each image has one class")
        return
    rows = []
    for each in file.classes:
        ends, mistaken = each.interval, list(each.mistaken.items())[:_MISTAKEN]
        share = each.right / each.images if each.images else None
        told = ", ".join(f"{escape(label)} {count}" for label, count in mistaken)
        recall = metric_text(share, None if ends is None else ends.ends)
        rows.append([escape(each.label), f"{each.images:,}", recall, told or "-"])
    columns = ["class", "images", "recall", "mistaken for"]
    out.print(table_of(columns, rows, f"{escape(file.file)} by class"))


def _row(each: FileEvaluation) -> list[str]:
    from hwnas.cli.terminal import metric_text

    first, *others = each.qualities
    return [
        escape(each.file),
        escape(each.computed_in),
        metric_text(first.value, first.interval.ends),
        "-" if each.is_reference else metric_text(first.loss, first.loss_interval.ends),
        *(metric_text(other.value) for other in others),
    ]
