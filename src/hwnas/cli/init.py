"""Command that asks a few questions and writes a recipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from hwnas.cli.app import SEARCHES, app, out

T = TypeVar("T")


@app.command(rich_help_panel=SEARCHES)
def init(
    images: Annotated[Path | None, typer.Argument(help="Folder of images, or an .npz file")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time budget of the whole job, in minutes")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Target to be fast on; may be repeated")
    ] = None,
    limit_ms: Annotated[
        float | None, typer.Option(help="Limit on the latency of a network, in ms; 0 for no limit")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="File to write; NAME.toml if not given")
    ] = None,
) -> None:
    """Write a recipe; ask for whatever the options leave open."""
    from hwnas.atomic import write_text
    from hwnas.errors import StorageError
    from hwnas.experiment.from_images import DEFAULT_TARGET, recipe_for_images
    from hwnas.recipe import parse_recipe

    folder = images or _ask("Images: a folder with a folder for each class, or an .npz", _images)
    budget = minutes or _ask("Time budget of the whole job, in minutes", _minutes, "45")
    targets = target or [
        _ask("Target that the networks should be fast on", _target, DEFAULT_TARGET)
    ]
    if limit_ms is None:
        limit_ms = _ask("Limit on the latency of a network, in ms; 0 for no limit", _limit, "0")
    text = recipe_for_images(folder, budget, targets, limit_ms or None)
    recipe, text = parse_recipe(text)
    for each in targets:
        _target(each)
    path = to or Path(f"{recipe.name}.toml")
    if path.exists():
        raise StorageError(f"{path} exists already; choose another --out")
    write_text(path, text)
    out.print(f"{path} is written; open settings are planned when the search starts", markup=False)
    out.print(f"next: hwnas search {path}", soft_wrap=True, markup=False)


def _ask(question: str, read: Callable[[str], T], default: str | None = None) -> T:
    """Ask a question until the answer can be parsed.

    Raises:
        ConfigError: Nobody can answer, since standard input is not a terminal.
    """
    from hwnas.errors import ConfigError, HwnasError

    while True:
        try:
            answer = typer.prompt(question, default=default, err=True)
        except typer.Abort:
            if sys.stdin.isatty():
                raise
            typer.echo(err=True)
            raise ConfigError(
                "init asks questions, but standard input gives no answer; give IMAGES, --minutes, "
                "--target and --limit-ms"
            ) from None
        try:
            return read(answer)
        except HwnasError as error:
            typer.echo(f"  {error}", err=True)


def _images(answer: str) -> Path:
    from hwnas.errors import ConfigError
    from hwnas.experiment.from_images import is_image_source

    path = Path(answer).expanduser()
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    if not is_image_source(path):
        raise ConfigError(f"{path} is neither a folder nor an .npz file")
    return path


def _minutes(answer: str) -> float:
    from hwnas.recipe import RunConfig

    found = RunConfig(_number(answer)).minutes
    assert found is not None
    return found


def _target(answer: str) -> str:
    from hwnas.deploy import Target

    return Target.parse(answer).name


def _limit(answer: str) -> float:
    from hwnas.errors import ConfigError

    limit = _number(answer)
    if not 0 <= limit < float("inf"):
        raise ConfigError(f"{answer} is not a time in ms; expected 0 or more")
    return limit


def _number(answer: str) -> float:
    from hwnas.errors import ConfigError

    try:
        return float(answer)
    except ValueError:
        raise ConfigError(f"{answer!r} is not a number") from None
