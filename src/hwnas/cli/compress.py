"""Command that compresses a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwnas.cli.app import SEARCHES, Json, app
from hwnas.cli.search import RayAddress, launch


@app.command(rich_help_panel=SEARCHES)
def compress(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Trained model: an ONNX file, a bundle, package.module:function, timm:NAME or "
            "hf:NAME",
        ),
    ],
    data: Annotated[
        str, typer.Option(help="Images: a folder, an .npz file, or data.source of a recipe")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Device, whose number formats are searched, e.g. cpu-onnxruntime-b1-t1; or target "
            "in one format; may be repeated"
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time budget of the whole job, in minutes")] = 30.0,
    max_loss: Annotated[
        float,
        typer.Option(
            metavar="POINTS",
            help="Largest loss of the first metric, in points: 1 is .01 of accuracy",
        ),
    ] = 1.0,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the model, a safetensors file")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images that the model takes, in pixels")
    ] = None,
    sparsity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NofM",
            help="Weights of a block that may stay, e.g. 2of4; networks ship in int8, and their "
            "size is an objective, too; may be repeated",
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME if not given")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the recipe: table.key=value; may be repeated"),
    ] = None,
    ray_address: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Search for smaller and faster networks within a trained model; bundles out."""
    from hwnas.experiment import Experiment
    from hwnas.experiment.from_model import DEFAULT_DEVICE, recipe_for_model

    targets = target or (DEFAULT_DEVICE,)
    text = recipe_for_model(
        *(model, data, minutes, targets, max_loss, weights, size), sparsity or ()
    )
    launch(Experiment.of_text(text, set_ or (), model), run, ray_address, as_json)
