"""Command that adds files in further formats to a bundle."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import (
    NETWORKS,
    Arena,
    BundlePath,
    ByRows,
    CodeName,
    Json,
    Readable,
    app,
    out,
    print_json,
)
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.deploy.file_formats.converted_file import ConvertedFile


@app.command(rich_help_panel=NETWORKS)
def convert(
    bundle: BundlePath,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="File format, e.g. mnn or openvino; may be repeated; `hwnas plugins` lists them",
        ),
    ],
    batch: Annotated[
        int, typer.Option(help="Images that a run takes, where the format fixes it")
    ] = 1,
    arena: Arena = None,
    name: CodeName = None,
    by_rows: ByRows = False,
    device: Readable = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Run, or images as data.source of a recipe, on whose test split the files are "
            "evaluated"
        ),
    ] = None,
    max_loss: Annotated[
        float,
        typer.Option(help="With --data: largest loss of the first metric, in its unit"),
    ] = 0.01,
    as_json: Json = False,
) -> None:
    """Convert a bundle's network to further file formats, and add and check the files."""
    from hwnas.api.conversion import convert

    converted = convert(
        bundle,
        to,
        batch=batch,
        arena_bytes=arena_bytes(arena),
        limits=device,
        name=name,
        by_rows=by_rows,
        data=data,
        max_loss=max_loss,
    ).converted
    made = [each for each in converted if each.format in to]
    if as_json:
        print_json([each.to_json() for each in made])
        return
    for each in made:
        out.print(f"{bundle / each.main}: {told(each)}", soft_wrap=True, markup=False)


def told(file: ConvertedFile) -> str:
    """Return what is known of a converted file in one line."""
    sizes = "".join(
        f"; {name.removesuffix('_bytes')} of {size:,} bytes" for name, size in file.sizes.items()
    )
    if file.not_run is not None:
        return f"converted, not run here: {file.not_run}{sizes}"
    agree = f"outputs agree within {file.difference:.1e} of the largest output"
    if file.quality is None:
        return f"runs here, {agree}{sizes}"
    found = file.quality
    low, high = found.loss_interval.ends
    return (
        f"runs here, {agree}; {found.metric} {found.value:.4f} on {found.n} {found.split} images, "
        f"a loss of {found.loss:.4f} ({low:.4f} to {high:.4f}){sizes}"
    )


def arena_bytes(text: str | None) -> int | None:
    """Return the size of an arena in bytes; None without one."""
    return None if text is None else size_in_bytes(text, "--arena")


def size_in_bytes(text: str, option: str) -> int:
    """Return a size such as ``"320KB"`` in bytes; a KB has 1,024 of them.

    Args:
        text: The size.
        option: Option that gives it, for messages.

    Raises:
        ConfigError: The text is not a size.
    """
    found = re.fullmatch(r"(\d+)\s*(KB|MB|GB|B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise ConfigError(f"{option} is {text!r}; expected a size such as 320KB, 1MB or 65536")
    return int(found[1]) * {"KB": 2**10, "MB": 2**20, "GB": 2**30}.get((found[2] or "").upper(), 1)
