"""What the experiments of the photographs have in common on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.command import data_folder, module_of

__all__ = ["images_of", "name_of_images", "parser_of"]

_SHARED = "photos5_jpeg.npz"


def parser_of(folder: Path, about: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Return options for seeds, images, settings of the recipe, and where results and files go.

    Args:
        folder: Of the experiment.
        about: What it does.
        seeds: Those that are run if none are given.
    """
    prog = f"python -m {module_of(folder)}.run"
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), metavar="N")
    parser.add_argument("--images", type=Path, help="other images than the shared photographs")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the jobs' recipe"
    )
    parser.add_argument("--out", type=Path, default=folder)
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "photographs"))
    return parser


def images_of(arguments: argparse.Namespace) -> Path:
    """Return the images that are named, or the shared photographs.

    Raises:
        DataError: None are named, and HWNAS_DATA is not set.
    """
    named: Path | None = arguments.images
    return named or data_folder() / "images" / _SHARED


def name_of_images(arguments: argparse.Namespace) -> str:
    """Return how rows call the images."""
    return arguments.images.name if arguments.images else _SHARED
