"""Image data sets in a folder with a table of targets, ``metadata.csv``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from hwnas.errors import DataError
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.layouts.image_folder import FolderFiles, FolderListing, decode_files, entries
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.raw_images import (
    PARTS,
    RawImages,
    Targets,
    held_out_parts,
    main_part,
    numbered_groups,
)

__all__ = ["TABLE", "has_table", "kind_of_table", "read_table", "table_manifest"]

TABLE = "metadata.csv"
"""Name of the table, as in the image folders of Hugging Face's data sets."""

_FILE = "file_name"
_GROUP = "group"
_CLASSES = ("label", "class")
_LAYOUT = (
    f"expected images and {TABLE} with a column {_FILE} and columns of targets, perhaps in train/, "
    "val/ and test/"
)

TableKind = Literal["classes", "labels", "values", "tasks"]


@dataclass(frozen=True)
class _Table:
    """Table of a part.

    Attributes:
        path: File of the table.
        files: Image file of each row, by its path in the folder of the data set, with its state.
        columns: Texts of each column of targets, by its name.
        groups: Group of each image; None if there is no such column.
    """

    path: Path
    files: FolderFiles
    columns: Mapping[str, Sequence[str]]
    groups: Sequence[str] | None


def has_table(folder: Path) -> bool:
    """Return whether a folder has a table of targets, itself or in the folder ``train``."""
    return any((part / TABLE).is_file() for part in (folder, folder / "train"))


def table_manifest(folder: Path) -> DataManifest:
    """Return the manifest of the tables and of all images in them, without opening an image.

    Raises:
        DataError: A table is wrong, or an image is missing.
    """
    return _listed(folder)[1]


def kind_of_table(folder: Path) -> TableKind:
    """Return what the targets are: classes, labels that are 0 or 1, several classes, or values.

    Raises:
        DataError: A table is wrong, or an image is missing.
    """
    parts, _ = _listed(folder)
    columns = parts[main_part(parts)].columns
    if _are_classes(columns):
        return "classes"
    if any(map(_is_text, columns.values())):
        return "tasks"
    texts = {text for column in columns.values() for text in column}
    return "labels" if len(columns) > 1 and texts <= {"0", "1"} else "values"


def read_table(
    folder: Path, size: ImageSize | None, cache: ImageCache, skip_damaged: bool = False
) -> RawImages:
    """Read images and targets that a table lists, perhaps in ``train``, ``val`` and ``test``.

    A row of ``metadata.csv`` has the path of an image, relative to the table, in the column
    ``file_name``. If the only other column is called ``label`` or ``class``, or has no numbers, it
    holds classes. Otherwise the columns are numbers, the values of the image; of several columns,
    one without any number holds names of classes, and its values are the numbers of these. A column
    ``group`` is no target: images of a group are never divided between splits.

    Args:
        folder: Folder with the table, or with one in ``train`` and in the parts of
            `held_out_parts`.
        size: Size that images are brought to; None keeps their own, which must be the same for all.
        cache: Cache for the decoded images.
        skip_damaged: Whether to leave out images that cannot be decoded.

    Raises:
        DataError: A table or an image is damaged, an image is missing, or sizes differ.
        StorageError: The cache cannot be written.
    """
    parts, manifest = _listed(folder)
    main = main_part(parts)
    first = parts[main]
    classes = {
        name: tuple(sorted(set(texts), key=_order))
        for name, texts in first.columns.items()
        if _are_classes(first.columns) or _is_text(texts)
    }
    names = next(iter(classes.values())) if _are_classes(first.columns) else None
    targets = {part: _targets(table, classes, names is None) for part, table in parts.items()}
    files = {part: table.files for part, table in parts.items()}
    decoded = decode_files(folder, files, manifest, size, cache, skip_damaged)
    groups = numbered_groups(first.groups, len(first.files), f"{first.path}: {_GROUP}")
    kept = {part: each.kept for part, each in decoded.parts.items()}
    return RawImages.of_parts(
        {part: (decoded.arrays[part], targets[part][kept[part]]) for part in parts},
        class_names=names,
        value_names=None if names is not None else tuple(first.columns),
        value_classes=(
            tuple(classes.get(name, ()) for name in first.columns)
            if classes and names is None
            else None
        ),
        groups=None if groups is None else groups[kept[main]],
        manifest=manifest,
        skipped=decoded.skipped,
    )


def _listed(folder: Path) -> tuple[Mapping[str, _Table], DataManifest]:
    """Return the tables by part, and the manifest of all tables and images."""
    folders, files = entries(folder, _LAYOUT)
    states: dict[str, str] = {}
    if TABLE in files:
        parts = {"all": _table(folder, "", states)}
    else:
        there = [name for name in folders if name in PARTS and (folder / name / TABLE).is_file()]
        held_out = held_out_parts(there)
        if not held_out:
            raise DataError(f"{folder} has a {TABLE} in train/ only; {_LAYOUT}")
        named = {"train": "train", **held_out}
        parts = {part: _table(folder, f"{name}/", states) for part, name in named.items()}
        columns = parts["train"].columns.keys()
        for table in parts.values():
            if table.columns.keys() != columns:
                raise DataError(
                    f"{table.path} has the columns {', '.join(table.columns)}, but that of train "
                    f"{', '.join(columns)}; give all tables the same columns"
                )
    return parts, DataManifest("files", states)


def _table(folder: Path, prefix: str, states: dict[str, str]) -> _Table:
    """Read the table of a part; add the states of its files to ``states``."""
    path = folder / prefix / TABLE
    rows = _rows(path)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != _FILE}
    groups = columns.pop(_GROUP, None)
    if not columns:
        raise DataError(f"{path} has no column of targets; {_LAYOUT}")
    listing = FolderListing(folder, _LAYOUT)
    found: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        name = PurePosixPath(row[_FILE])
        if name.is_absolute() or ".." in name.parts:
            raise DataError(f"{path}, line {number}: {name} is not in the folder; {_LAYOUT}")
        image = str(PurePosixPath(prefix, name))
        state = listing.state(PurePosixPath(image))
        if state is None:
            raise DataError(
                f"{path}, line {number}: there is no image {folder / image}; add it, or remove the "
                "line"
            )
        if image in found:
            raise DataError(f"{path}, line {number}: {name} is in the table twice; remove one line")
        found[image] = state
    states |= found
    states[f"{prefix}{TABLE}"] = listing.state(PurePosixPath(prefix, TABLE)) or ""
    return _Table(path, found, columns, groups)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        reader = csv.DictReader(io.StringIO(text), strict=True)
        rows, columns = list(reader), list(reader.fieldnames or ())
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); {_LAYOUT}") from error
    if not rows:
        raise DataError(f"{path} has no rows; {_LAYOUT}")
    if _FILE not in columns or len(set(columns)) < max(2, len(columns)):
        raise DataError(f"{path} has the columns {', '.join(columns)}; {_LAYOUT}")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values() or "" in row.values():
            raise DataError(
                f"{path}, line {number}: expected {len(columns)} entries, none of them empty"
            )
    return rows


def _are_classes(columns: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the targets are the classes of a single column."""
    if len(columns) > 1:
        return False
    [(name, texts)] = columns.items()
    return name in _CLASSES or _is_text(texts)


def _is_text(texts: Sequence[str]) -> bool:
    """Return whether no entry of a column is a number."""
    return all(math.isnan(_number(text)) for text in texts)


def _targets(table: _Table, classes: Mapping[str, Sequence[str]], are_values: bool) -> Targets:
    """Return the classes, int64 (N,), or the values, float32 (N, K), of a table.

    Args:
        table: Table to read.
        classes: Names of the classes of each column that holds classes, by its name.
        are_values: Whether the targets are values, though some may be the numbers of classes.
    """
    columns = [
        _numbers_of_classes(table, name, classes[name])
        if name in classes
        else _finite_numbers(table, name)
        for name in table.columns
    ]
    return np.array(columns, np.float32).T.copy() if are_values else np.array(columns[0], np.int64)


def _numbers_of_classes(table: _Table, column: str, names: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in enumerate(names)}
    for line, text in enumerate(table.columns[column], start=2):
        if text not in numbers:
            raise DataError(
                f"{table.path}, line {line}: the table of train has no image of class {text!r}"
            )
    return [numbers[text] for text in table.columns[column]]


def _finite_numbers(table: _Table, column: str) -> list[float]:
    for line, text in enumerate(table.columns[column], start=2):
        if not math.isfinite(_number(text)):
            raise DataError(
                f"{table.path}, line {line}: {column} is {text!r}; expected a number, or leave "
                "the column out"
            )
    return [_number(text) for text in table.columns[column]]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _order(name: str) -> tuple[float, str]:
    """Return the key by which class names are sorted: numbers by their value, then texts."""
    number = _number(name)
    return (math.inf if math.isnan(number) else number), name
