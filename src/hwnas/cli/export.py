"""Command that copies the bundle of a network out of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import (
    SEARCHES,
    Arena,
    ByRows,
    CodeName,
    Json,
    Readable,
    RunPath,
    app,
    out,
    print_json,
)

if TYPE_CHECKING:
    from hwnas.deploy.bundles.bundle import Bundle


@app.command(rich_help_panel=SEARCHES)
def export(
    run: RunPath,
    to: Annotated[
        Path | None, typer.Option("--out", help="Folder to create; must not exist")
    ] = None,
    pick: Annotated[
        str | None, typer.Option(help="Network: knee, fastest, most-accurate or an id")
    ] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="Limit on the measured latency, in ms")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target that was added with `hwnas specialise`")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Task of a network that does several; only its path is exported",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Also convert it to this file format, e.g. mnn; may be repeated",
        ),
    ] = None,
    arena: Arena = None,
    name: CodeName = None,
    by_rows: ByRows = False,
    device: Readable = None,
    triton_repository: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also add it to this model repository of Triton Inference Server"
        ),
    ] = None,
    web: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write a web page to this new folder, which classifies pictures in browsers",
        ),
    ] = None,
    runtime_files: Annotated[
        Path | None,
        typer.Option(
            help="With --web: unpacked npm package onnxruntime-web; fetched by npm if not given"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy the bundle of one network out of a run; create it first if necessary."""
    import tempfile

    from hwnas.api.conversion import model_repository, web_page
    from hwnas.api.run import export
    from hwnas.cli.networks.convert import arena_bytes
    from hwnas.deploy.runtimes.ort_web_files import runtime_files as web_files
    from hwnas.errors import ConfigError

    if to is None and web is None:
        raise ConfigError("give --out, the folder of the bundle, or --web, the folder of a page")
    more = formats or [], arena_bytes(arena), device, name, by_rows, task
    if web is not None:
        web_files(runtime_files)  # raises before a network is made
    with tempfile.TemporaryDirectory() as work:
        bundle = export(run, to or Path(work) / "bundle", pick, max_latency_ms, target, *more)
        served = model_repository(bundle, triton_repository) if triton_repository else None
        page = web_page(bundle, web, runtime_files=runtime_files) if web is not None else None
        if as_json:
            print_json(bundle.description)
            return
        for line in _told(bundle, to, served, page):
            out.print(line, soft_wrap=True, markup=False)


def _told(bundle: Bundle, to: Path | None, served: Path | None, page: Path | None) -> list[str]:
    """Return lines about what was written, and the next command."""
    from hwnas.cli.networks.convert import told

    name, lines = f"network {bundle.description['id']}, verified", []
    path = bundle.description["provenance"].get("path_of_task")
    if path is not None:
        macs = next(m["value"] for m in bundle.description["metrics"] if m["name"] == "macs")
        name = f"path of task {path}, {macs:,} multiply-accumulates, verified"
    if to is not None:
        lines.append(f"{to}: {name}")
        lines += [f"{to / each.main}: {told(each)}" for each in bundle.converted]
    if served is not None:
        lines.append(f"{served}: for Triton Inference Server")
    if page is not None:
        lines.append(f"{page}: a web page with {name}")
    if to is not None:
        texts = bundle.outputs.kind == "next_byte_scores"
        command = f'generate {to} "The "' if texts else f"run {to} image.png"
        lines.append(f"next: hwnas {command}")
    elif page is not None:
        lines.append(f"next: python -m http.server --directory {page.parent}")
    return lines
