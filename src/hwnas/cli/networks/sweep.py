"""Command that chooses among variants of a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import NETWORKS, Json, Targets, app, out, print_json

if TYPE_CHECKING:
    from hwnas.deploy.variants.sweep import Sweep, VariantResult


@app.command(rich_help_panel=NETWORKS)
def sweep(
    source: Annotated[
        Path, typer.Argument(metavar="BUNDLE|RUN|MODEL.onnx", help="Source of the network")
    ],
    target: Targets,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variants",
            help="Variants to try, e.g. int8 or sparse-2of4-int8; may be repeated; "
            "all of `hwnas plugins` if not given",
        ),
    ] = None,
    max_loss: Annotated[
        float, typer.Option(help="Largest loss of a variant in the first metric, in its unit")
    ] = 0.01,
    data: Annotated[
        str | None,
        typer.Option(
            help="Images for the evaluation, as data.source of a recipe; a run has its own"
        ),
    ] = None,
    pick: Annotated[
        str | None, typer.Option(help="Network of a run: knee, fastest, most-accurate or an id")
    ] = None,
    finetune_minutes: Annotated[
        float | None, typer.Option(help="Time for each variant that is fine-tuned, in minutes")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="Folder to create with the chosen variant")
    ] = None,
    as_json: Json = False,
) -> None:
    """Quantise, convert and time a network in all available ways, and choose the fastest."""
    from hwnas.stages.deployment.sweep import SweepOptions, sweep_network

    options = SweepOptions(tuple(variants or ()), max_loss, data, pick, finetune_minutes)
    found = sweep_network(source, target, options, to)
    if as_json:
        print_json(found.to_json())
        return
    _show(found)
    if to is not None:
        out.print(f"written to {to}", soft_wrap=True, markup=False)


def _show(found: Sweep) -> None:
    from hwnas.cli.terminal import metric_text, table_of

    columns = ["variant", "target", "measured ms", "difference", "quality", "loss", "size"]
    out.print(table_of(columns, [_row(each) for each in found.results], "Variants"))
    for each in found.results:
        if each.refusal:
            out.print(
                f"{each.variant} on {each.target}: {each.refusal}", soft_wrap=True, markup=False
            )
    chosen = found.chosen
    out.print(
        f"chosen: {chosen.variant} on {chosen.target}, {chosen.latency_ms:.3g} ms (measured)",
        soft_wrap=True,
        markup=False,
    )
    if found.tested is not None:
        tested = found.tested
        out.print(
            f"on {tested.n} test images: {tested.metric} {tested.value:.4f}, a loss of "
            f"{metric_text(tested.loss, tested.loss_interval.ends)}",
            soft_wrap=True,
            markup=False,
        )


def _row(each: VariantResult) -> list[str]:
    from hwnas.cli.terminal import metric_text, size_text

    quality = each.quality
    return [
        each.variant,
        each.target,
        "-" if each.measurement is None else f"{each.latency_ms:.3g}",
        "-" if each.difference is None else f"{each.difference:.1e}",
        "-" if quality is None else metric_text(quality.value),
        "-" if quality is None else metric_text(quality.loss, quality.loss_interval.ends),
        "-" if each.made is None else size_text(each.bytes),
    ]
