"""Recipe from images, targets and a budget alone."""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import Image

from hwnas.errors import ConfigError
from hwnas.hashing import differing_fields
from hwnas.recipe.text import recipe_text
from hwnas.search.data.layouts.coco_folder import has_coco
from hwnas.search.data.layouts.image_records import (
    has_records,
    kind_of_records,
    open_recorded_images,
)
from hwnas.search.data.layouts.image_shards import has_shards, open_images
from hwnas.search.data.layouts.image_table import has_table, kind_of_table
from hwnas.search.data.layouts.mask_folder import has_masks
from hwnas.search.data.layouts.text_files import is_text
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.raw_images import kind_of_arrays
from hwnas.search.data.sources import source_manifest
from hwnas.search.objectives.objective import Objective

__all__ = [
    "DEFAULT_TARGET",
    "TaskKind",
    "data_table",
    "is_image_source",
    "kind_of_targets",
    "kind_of_task",
    "name_of",
    "objective_of",
    "recipe_for_images",
    "task_of",
    "task_tables",
]

DEFAULT_TARGET = "cpu-onnxruntime-fp32-b1-t1"
_SIDES = ((60.0, 112), (240.0, 160))  # largest side in pixels for budgets up to so many minutes
_LARGEST_SIDE = 224
TaskKind = Literal["classes", "labels", "values", "tasks", "masks", "boxes", "pictures", "tokens"]
_TASKS: Mapping[TaskKind, str] = {
    "classes": "classification",
    "labels": "multilabel",
    "values": "regression",
    "tasks": "multi-task",
    "masks": "segmentation",
    "boxes": "detection",
    "pictures": "super-resolution",
    "tokens": "language-model",
}
_OBJECTIVES = {
    "classification": Objective("accuracy", "maximize"),
    "multilabel": Objective("average_precision", "maximize"),
    "multi-task": Objective("accuracy", "maximize"),
    "regression": Objective("root_mean_squared_error", "minimize"),
    "segmentation": Objective("mean_iou", "maximize"),
    "detection": Objective("map", "maximize"),
    "super-resolution": Objective("psnr_db", "maximize"),
    "language-model": Objective("perplexity", "minimize"),
}
"""First objective by the name of the task."""
_LOOKED_AT = 64  # largest number of images whose sizes are read


def is_image_source(path: Path) -> bool:
    """Return whether a path holds images rather than a recipe: a folder or an ``.npz`` archive."""
    return path.is_dir() or path.suffix == ".npz"


def recipe_for_images(
    images: Path,
    minutes: float,
    targets: Sequence[str] = (DEFAULT_TARGET,),
    limit_ms: float | None = None,
) -> str:
    """Return the text of a recipe.

    Args:
        images: Folder of images and their targets, or an ``.npz`` archive; see `data_table`.
        minutes: Budget of the whole job, in minutes.
        targets: Targets of the latency objective; of several, the slowest counts.
        limit_ms: Largest latency of a network on any of the targets; None for no limit.

    Raises:
        ConfigError: The images do not exist, or the limit is not above 0.
        DataError: The folder has another layout.
    """
    if limit_ms is not None and not limit_ms > 0:
        raise ConfigError(f"the limit is {limit_ms:g} ms; expected a time above 0")
    latency: dict[str, Any] = {"metric": "latency_ms", "direction": "minimize"}
    latency |= (
        {"target": targets[0]}
        if len(targets) == 1
        else {"targets": list(targets), "reduce": "worst"}
    )
    if limit_ms is not None:
        latency["limit"] = limit_ms
    data = data_table(images, minutes)
    task, objective = task_tables(images)
    return recipe_text(
        {
            "name": name_of(images),
            "run": {"minutes": minutes},
            "data": data,
            **task,
            "objective": [objective, latency],
        }
    )


def task_tables(images: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table ``[task]`` by its name, unless it is the default; and the first objective.

    Args:
        images: Folder of images and their targets, or an ``.npz`` archive.
    """
    task = task_of(kind_of_targets(images))
    objective = differing_fields(_OBJECTIVES[task])
    return {"task": {"name": task}} if task != "classification" else {}, objective


def task_of(kind: TaskKind) -> str:
    """Return the name of the task that learns targets of a kind."""
    return _TASKS[kind]


def objective_of(task: str) -> Objective | None:
    """Return the first objective of a task that ships with hwnas; None for any other."""
    return _OBJECTIVES.get(task)


def kind_of_task(arrays: Mapping[str, Any]) -> TaskKind:
    """Return what the targets of arrays are.

    Args:
        arrays: Arrays ``x_train`` and ``y_train``, perhaps with ``class_names``.
    """
    kind = kind_of_arrays(arrays)
    if kind == "values" and np.isin(np.asarray(arrays["y_train"]), (0, 1)).all():
        return "labels"
    return kind


def kind_of_targets(images: Path) -> TaskKind:
    """Return what the targets are, as far as the files tell without decoding images.

    Args:
        images: Folder of images and their targets, or an ``.npz`` archive.
    """
    if images.is_file():
        return _kind_in_archive(images)
    if has_masks(images):
        return "masks"
    if has_coco(images):
        return "boxes"
    if has_records(images):
        return kind_of_records(images)
    return kind_of_table(images) if has_table(images) else "classes"


def _kind_in_archive(path: Path) -> TaskKind:
    damaged = contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile)
    with damaged, np.load(path, allow_pickle=False) as archive:
        if {"x_train", "y_train"} <= set(archive.files):
            return kind_of_task(archive)
    return "classes"  # as in archives of JPEG files; loading reports what is damaged


def data_table(images: Path, minutes: float) -> dict[str, Any]:
    """Return the table ``[data]`` for images: their source, and for a folder their size.

    Args:
        images: Folder in one of the layouts of ``folder:PATH``, such as a subfolder for each class;
            or an ``.npz`` archive.
        minutes: Budget of the whole job in minutes, which bounds the size of the images.

    Raises:
        ConfigError: The images do not exist.
        DataError: The folder has another layout.
    """
    if not images.exists():
        raise ConfigError(f"{images} does not exist; give a recipe, or a folder of images")
    if is_text(images):
        raise ConfigError(
            f"{images} is text; a language model needs a recipe, with data.source = "
            f'"text:{images}" and task.name = "language-model"'
        )
    path = images.resolve()
    if not path.is_dir():
        return {"source": f"npz:{path}"}
    source = f"folder:{path}"
    manifest = source_manifest(source, path)
    assert manifest is not None
    return {"source": source, "size": _side(path, manifest, minutes)}


def name_of(images: Path) -> str:
    """Return the name of a run on images, made from their path."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", images.resolve().stem).strip("-._")
    return name or "images"


def _side(folder: Path, manifest: DataManifest, minutes: float) -> int:
    """Return the side that images are scaled to: their median side, bounded by the budget."""
    most = next((side for until, side in _SIDES if minutes <= until), _LARGEST_SIDE)
    files: Iterable[Path | BinaryIO]
    if has_shards(folder):
        files = open_images(folder, _LOOKED_AT)
    elif has_records(folder):
        files = open_recorded_images(folder, _LOOKED_AT)
    else:
        names = sorted(manifest.entries)
        chosen = np.random.default_rng(0).permutation(len(names))[:_LOOKED_AT]
        files = [folder / names[row] for row in chosen]
    sides = [side for file in files if (side := _shorter_side(file))]
    return min(most, int(np.median(sides))) if sides else most


def _shorter_side(file: Path | BinaryIO) -> int:
    """Return the shorter side in pixels; 0 if the file is not an image, which loading reports."""
    try:
        with Image.open(file) as image:
            return min(image.size)
    except Exception:  # Pillow raises many types for damaged files
        return 0
