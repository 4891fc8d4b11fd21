"""A recipe for nothing but images, a target and a budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tomlkit
from PIL import Image

from hwnas.errors import ConfigError
from hwnas.search.data_manifest import DataManifest
from hwnas.search.sources import source_manifest

__all__ = ["DEFAULT_TARGET", "is_image_source", "recipe_for_images"]

DEFAULT_TARGET = "cpu-onnxruntime-fp32-b1-t1"
_SIDES = ((60.0, 112), (240.0, 160))  # up to so many minutes, images of at most so many pixels
_LARGEST_SIDE = 224
_LOOKED_AT = 64  # images whose size is looked at


def is_image_source(path: Path) -> bool:
    """Return whether a path is one of images, not of a recipe."""
    return path.is_dir() or path.suffix == ".npz"


def recipe_for_images(
    images: Path,
    minutes: float,
    targets: Sequence[str] = (DEFAULT_TARGET,),
    limit_ms: float | None = None,
) -> str:
    """Return the text of a recipe.

    Args:
        images: A folder with a folder for each class, or an archive (``.npz``).
        minutes: Budget of the whole job.
        targets: What to be fast on; of several the slowest counts.
        limit_ms: The longest that a network may take on any of them; None for no limit.

    Raises:
        ConfigError: There are no such images.
        DataError: The folder is laid out otherwise.
    """
    if limit_ms is not None and not limit_ms > 0:
        raise ConfigError(f"the limit is {limit_ms:g} ms; expected a time above 0")
    if not images.exists():
        raise ConfigError(f"there is no {images}; give a recipe, or a folder of images")
    path = images.resolve()
    source = f"{'folder' if path.is_dir() else 'npz'}:{path}"
    data = tomlkit.table()
    data["source"] = source
    if path.is_dir():
        manifest = source_manifest(source, path)
        assert manifest is not None
        data["size"] = _side(path, manifest, minutes)
    document = tomlkit.document()
    document["name"] = _name(path)
    document["run"] = {"minutes": minutes}
    document["data"] = data
    latency = {"metric": "latency_ms", "direction": "minimize"}
    latency |= {"target": targets[0]} if len(targets) == 1 else {}
    objectives = tomlkit.aot()
    for values in ({"metric": "accuracy", "direction": "maximize"}, latency):
        table = tomlkit.table()
        table.update(values)
        objectives.append(table)
    if len(targets) > 1:
        objectives[1].update({"targets": list(targets), "reduce": "worst"})
    if limit_ms is not None:
        objectives[1]["limit"] = limit_ms
    document["objective"] = objectives
    return tomlkit.dumps(document)


def _name(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")
    return name or "images"


def _side(folder: Path, manifest: DataManifest, minutes: float) -> int:
    """The size that images are brought to: theirs, unless that is more than the budget trains."""
    most = next((side for until, side in _SIDES if minutes <= until), _LARGEST_SIDE)
    names = sorted(manifest.entries)
    chosen = np.random.default_rng(0).permutation(len(names))[:_LOOKED_AT]
    sides = [side for row in chosen if (side := _shorter_side(folder / names[row]))]
    return min(most, int(np.median(sides))) if sides else most


def _shorter_side(file: Path) -> int:
    """In pixels; 0 where the file is no image, which loading tells."""
    try:
        with Image.open(file) as image:
            return min(image.size)
    except Exception:  # Pillow's readers raise many kinds for damaged files
        return 0
