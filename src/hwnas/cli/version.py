"""Versions of hwnas, of Python, and of the libraries that hwnas uses."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated

import typer

from hwnas import __version__
from hwnas.cli.app import MORE, Json, app, out, print_json

__all__ = ["versions"]

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_FOR_DEVELOPERS = re.compile(r"extra == .dev.")


def versions() -> dict[str, str | None]:
    """Return versions by name: hwnas, Python, the system, and every library that hwnas can use.

    Libraries that are not installed have None.
    """
    found: dict[str, str | None] = {
        "hwnas": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    try:
        wanted = [line for line in requires("hwnas") or () if not _FOR_DEVELOPERS.search(line)]
        named = [match[0] for line in wanted if (match := _NAME.match(line))]
    except PackageNotFoundError:  # the sources are used without being installed
        named = []
    return found | {name: _installed(name) for name in named}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@app.command("version", rich_help_panel=MORE)
def command(as_json: Json = False) -> None:
    """Print the versions of hwnas and of the libraries that it uses."""
    found = versions()
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        out.print(f"{name:{width}}  {value or 'not installed'}")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hwnas {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Take the options that stand before a command."""
