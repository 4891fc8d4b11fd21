"""Command-line options that the experiments on photographs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.command import data_folder, module_of

__all__ = ["images_of", "name_of_images", "parser_of"]

_SHARED = "photos5_jpeg.npz"


def parser_of(folder: Path, about: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Return a parser with options for seeds, images, settings of the recipe, and output folders.

    Args:
        folder: Folder of the experiment.
        about: Description of the experiment.
        seeds: Default seeds.
    """
    prog = f"python -m {module_of(folder)}.run"
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), metavar="N")
    parser.add_argument(
        "--images", type=Path, help="images to use instead of the shared photographs"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the jobs' recipe"
    )
    parser.add_argument("--out", type=Path, default=folder)
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "photographs"))
    return parser


def images_of(arguments: argparse.Namespace) -> Path:
    """Return the path of the given images, or of the shared photographs.

    Raises:
        DataError: No images are given, and HWNAS_DATA is not set.
    """
    named: Path | None = arguments.images
    return named or data_folder() / "images" / _SHARED


def name_of_images(arguments: argparse.Namespace) -> str:
    """Return the name of the images in rows."""
    return arguments.images.name if arguments.images else _SHARED
