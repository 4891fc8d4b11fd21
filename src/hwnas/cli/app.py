"""Typer application of the command line, with shared options, output and error handling."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from hwnas.errors import HwnasError

__all__ = [
    "DEVICES",
    "MORE",
    "NETWORKS",
    "SEARCHES",
    "Arena",
    "BundlePath",
    "ByRows",
    "CodeName",
    "Json",
    "RunPath",
    "Targets",
    "app",
    "fail",
    "main",
    "out",
    "print_json",
]

SEARCHES, NETWORKS, DEVICES, MORE = PANELS = (
    "Searches",
    "Networks of a search, or any ONNX file",
    "Devices, and costs of networks on them",
    "More",
)
"""Panels of the help, by the subject of their commands."""


class _InPanels(TyperGroup):
    """Command group that lists commands by panel, with ``search`` first."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of commands in the order of the help."""

        def place(name: str) -> tuple[int, bool]:
            command: Any = self.commands[name]
            return PANELS.index(command.rich_help_panel), name != "search"

        return sorted(self.commands, key=place)


app = typer.Typer(
    cls=_InPanels,
    help="Search for networks for a device, measure them on it, and package them for deployment.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Arena = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Most memory for activations in the format c, e.g. 320KB (a KB has 1,024 bytes)",
    ),
]
CodeName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the files in the format c, and prefix of all their public names",
    ),
]
ByRows = Annotated[
    bool,
    typer.Option(
        "--by-rows",
        help="Let the format c take the rows of an image one by one, so that it takes no memory",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run")]
BundlePath = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle or a cascade")
]
Targets = Annotated[
    list[str],
    typer.Option("--target", help="Target, e.g. cpu-onnxruntime-fp32-b1-t1; may be repeated"),
]

Readable = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="DEVICE",
        help="Refuse files that this device cannot read: a release, e.g. tensorrt-8.6, or a TOML "
        "file with opset, operators or without",
    ),
]

_UsageError: Any = typer.BadParameter.__base__  # its module depends on the version of Typer

out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def print_json(value: Any) -> None:
    """Print a value as JSON, for scripts."""
    print(json.dumps(value, indent=2, default=str))


def fail(message: str, status: int) -> NoReturn:
    """Print a message to standard error and exit with a status."""
    print(message, file=sys.stderr)
    raise SystemExit(status)


def main() -> None:
    """Run the command line; print an error of hwnas as one line and exit with status 2."""
    try:
        status = app(prog_name="hwnas", standalone_mode=False)
    except HwnasError as error:
        fail(f"error: {' '.join(str(error).split())}", 2)
    except _UsageError as error:
        fail(_usage(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", 130)
    except BrokenPipeError:  # of `hwnas ... | head`; Python would report it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    if status == 130:  # Typer's status for Ctrl-C
        fail("interrupted", 130)
    raise SystemExit(status if isinstance(status, int) else 0)


def _usage(error: Any) -> str:
    if error.ctx is None:
        return f"error: {error.format_message()}"
    if type(error).__name__ == "NoArgsIsHelpError":  # Typer has printed the help
        return f"error: a command is missing; try `{error.ctx.command_path} --help`"
    message = " ".join(error.format_message().split()).rstrip(".")
    end = "" if message.endswith("?") else ";"
    return f"error: {message}{end} see `{error.ctx.command_path} --help`"
