"""Commands about bundles: check them, run them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hwnas.cli.app import BundlePath, Json, app, out, print_json


@app.command()
def verify(bundle: BundlePath, as_json: Json = False) -> None:
    """Check a bundle: checksums, ONNX, golden outputs."""
    from hwnas.deploy.bundle import Bundle

    checks = Bundle.load(bundle).verify()
    if as_json:
        print_json([asdict(check) for check in checks])
        return
    for check in checks:
        out.print(f"[green]✓[/] {check.name}  [dim]{check.detail}[/]", soft_wrap=True)


@app.command()
def run(
    bundle: BundlePath,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    as_json: Json = False,
) -> None:
    """Run a bundle on images."""
    from hwnas.deploy.bundle import Bundle

    answers = Bundle.load(bundle).run(images)
    if as_json:
        print_json([{"image": str(i), **a} for i, a in zip(images, answers, strict=True)])
        return
    for image, answer in zip(images, answers, strict=True):
        if "label" in answer:
            text = f"{answer['label']}  {answer['probability']:.1%}"
        else:
            text = json.dumps(answer["values"])
        out.print(f"{image}  {text}", soft_wrap=True, markup=False)
