"""Command that checks a network for regressions, for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import NETWORKS, Json, app, out, print_json

if TYPE_CHECKING:
    from hwnas.deploy.gate.gate import CostCheck


@app.command(rich_help_panel=NETWORKS)
def check(
    source: Annotated[Path, typer.Argument(metavar="BUNDLE|MODEL.onnx", help="Network to check")],
    budget: Annotated[Path, typer.Option(help="TOML file with a target and limits")],
    against: Annotated[
        Path | None,
        typer.Option(help="Bundle or ONNX file that the network must not be worse than"),
    ] = None,
    junit_path: Annotated[
        Path | None, typer.Option("--junit", help="File for the verdicts as JUnit XML")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a network against a budget; exit with status 1 if it breaks a limit or got worse."""
    from hwnas.api.checking import check
    from hwnas.atomic import write_text
    from hwnas.deploy.gate.junit import junit

    verdicts = check(source, budget, against)
    if junit_path is not None:
        write_text(junit_path, junit(str(source), verdicts))
    if as_json:
        print_json([verdict.to_json() for verdict in verdicts])
    else:
        _show(verdicts)
    if not all(verdict.ok for verdict in verdicts):
        raise typer.Exit(1)


def _show(verdicts: list[CostCheck]) -> None:
    from hwnas.cli.terminal import table_of

    columns = ["", "value", "limit", "old", "worse by", "95 % interval", ""]
    out.print(table_of(columns, [_row(verdict) for verdict in verdicts]))
    for verdict in verdicts:
        if verdict.note:
            out.print(f"{verdict.name}: {verdict.note}", style="dim", soft_wrap=True, markup=False)
    for verdict in verdicts:
        if verdict.failure:
            out.print(f"✗ {verdict.failure}", soft_wrap=True, markup=False)


def _row(verdict: CostCheck) -> list[str]:
    return [
        f"{verdict.name} ({verdict.kind})",
        _number(verdict.value),
        _number(verdict.limit),
        _number(verdict.old),
        _number(verdict.growth),
        "-" if verdict.interval is None else " to ".join(f"{x:+.3g}" for x in verdict.interval),
        "ok" if verdict.ok else "FAILED",
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
