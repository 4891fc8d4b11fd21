"""Command-line conventions that all experiments share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from hwnas.errors import DataError, HwnasError

__all__ = ["data_folder", "module_of", "run_command"]


def run_command(
    parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], None]
) -> None:
    """Parse the command line and run ``work``.

    Exit with status 2 on an `HwnasError`, which the user can correct, and with 130 on Ctrl-C.
    """
    try:
        work(parser.parse_args())
    except HwnasError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue", file=sys.stderr)
        sys.exit(130)


def module_of(folder: Path) -> str:
    """Return the module of an experiment's folder, e.g. ``"experiments.ranking"``."""
    return ".".join(folder.relative_to(Path(__file__).parents[1]).parts)


def data_folder() -> Path:
    """Return the folder that ``HWNAS_DATA`` names.

    Raises:
        DataError: ``HWNAS_DATA`` is not set.
    """
    folder = os.environ.get("HWNAS_DATA")
    if not folder:
        raise DataError("HWNAS_DATA is not set; set it to the folder with the published tables")
    return Path(folder)
