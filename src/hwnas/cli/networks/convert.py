"""Command that adds files in further formats to a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import NETWORKS, BundlePath, Json, app, out, print_json

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
    as_json: Json = False,
) -> None:
    """Convert a bundle's network to further file formats, and add and check the files."""
    from hwnas.api.conversion import convert

    made = [each for each in convert(bundle, to, batch=batch).converted if each.format in to]
    if as_json:
        print_json([each.to_json() for each in made])
        return
    for each in made:
        out.print(f"{bundle / each.main}: {told(each)}", soft_wrap=True, markup=False)


def told(file: ConvertedFile) -> str:
    """Return what is known of a converted file in one line."""
    if file.not_run is not None:
        return f"converted, not run here: {file.not_run}"
    return f"runs here, outputs agree within {file.difference:.1e} of the largest output"
