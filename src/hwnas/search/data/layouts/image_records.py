"""Image data sets in Parquet or Arrow files, as those of Hugging Face."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash

from hwnas.errors import DataError
from hwnas.search.data.decoded_images import (
    EncodedImage,
    EncodedImages,
    EncodedPart,
    decode_parts,
)
from hwnas.search.data.image_cache import ImageCache, Images, cache_key
from hwnas.search.data.image_size import ImageSize, read_image, size_key
from hwnas.search.data.layouts.image_folder import FolderFiles, channels_of, entries, list_version
from hwnas.search.data.layouts.image_shards import files_by_part
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.raw_images import (
    PARTS,
    RawImages,
    Targets,
    main_part,
    numbered_groups,
)

if TYPE_CHECKING:  # it takes a tenth of a second, and only these files need it
    import pyarrow as pa

__all__ = [
    "has_records",
    "kind_of_records",
    "open_recorded_images",
    "read_records",
    "records_manifest",
]

_LAYOUT = (
    "expected files NAME.parquet or NAME.arrow with a column of images and one of targets, perhaps "
    "with train, validation and test in the names of the files or of their folders"
)
_SUFFIXES = (".parquet", ".arrow")
_FOLDERS = ("data", *PARTS)
_TARGETS = ("label", "labels", "class", "target")
_GROUP = "group"
_INTERMEDIATE = "cache-"  # files that Hugging Face's library keeps beside those of a data set
_ROWS = 256  # read at a time


@dataclass(frozen=True)
class _Columns:
    """Columns of a data set.

    Attributes:
        image: Name of the column of images: encoded files, or structures with their ``bytes``.
        target: Name of the column of targets.
        names: Names of the classes or labels, if the file has any.
        grouped: Whether there is a column of groups.
    """

    image: str
    target: str
    names: tuple[str, ...] | None
    grouped: bool


def has_records(folder: Path) -> bool:
    """Return whether a folder holds Parquet or Arrow files, itself or in a folder of a part."""
    return any(
        any((folder / name).glob(f"*{suffix}")) for name in ("", *_FOLDERS) for suffix in _SUFFIXES
    )


def records_manifest(folder: Path) -> DataManifest:
    """Return the manifest of all files, without opening one.

    Raises:
        DataError: The parts of the files are unclear.
    """
    return _listed(folder)[1]


def read_records(
    folder: Path, size: ImageSize | None, cache: ImageCache, skip_damaged: bool = False
) -> RawImages:
    """Read images and targets from Parquet or Arrow files, perhaps divided into parts.

    Targets are the only column beside the image, or the one called ``label``, ``labels``, ``class``
    or ``target``, or the only one that the file declares to be a class label. Whole numbers and
    texts are classes, floats are values, and lists of class labels are labels. A column ``group``
    is no target: images of a group are never divided between splits.

    Args:
        folder: Folder with the files, perhaps in folders called ``data`` or by their part.
        size: Size that images are brought to; None keeps their own, which must be the same for all.
        cache: Cache for the decoded images.
        skip_damaged: Whether to leave out images that cannot be decoded.

    Raises:
        DataError: A file or an image is damaged, columns are missing or unclear, or sizes differ.
        StorageError: The cache cannot be written.
    """
    parts, manifest = _listed(folder)
    columns = _columns(folder / next(iter(manifest.entries)))
    images = (
        (name, io.BytesIO(content))
        for files in parts.values()
        for name, content in _images(folder, files, columns)
    )
    channels = channels_of(images, folder, manifest, cache)
    main = main_part(parts)
    given = {part: _column(folder, files, columns.target) for part, files in parts.items()}
    names = columns.names or _names_of(given[main])
    targets = {
        part: _targets(cells, names, f"{folder / next(iter(parts[part]))}: {columns.target}")
        for part, cells in given.items()
    }
    groups = _column(folder, parts[main], _GROUP) if columns.grouped else None
    numbered = numbered_groups(groups, len(targets[main]), f"{folder}: {_GROUP}")
    place = cache_key(folder, "records", size_key(size), f"{channels}ch")
    encoded = {
        part: EncodedPart(
            partial(_encoded, folder, files, columns, size, channels), list_version(files.items())
        )
        for part, files in parts.items()
    }
    decoded = decode_parts(place, encoded, cache, str(folder), skip_damaged)
    values = next(iter(targets.values())).ndim == 2
    return RawImages.of_parts(
        {part: (decoded.arrays[part], targets[part][decoded.parts[part].kept]) for part in parts},
        class_names=None if values else names,
        groups=None if numbered is None else numbered[decoded.parts[main].kept],
        value_names=names if values else None,
        manifest=manifest,
        skipped=decoded.skipped,
    )


def kind_of_records(folder: Path) -> Literal["classes", "labels", "values"]:
    """Return what the targets are: classes, lists of labels, or values.

    Raises:
        DataError: A file is damaged, or columns are missing or unclear.
    """
    path = folder / next(iter(_listed(folder)[1].entries))
    columns = _columns(path)
    first = next(itertools.chain.from_iterable(_batches(path, columns.target)), 0)
    if isinstance(first, int | str):
        return "classes"
    return "labels" if columns.names is not None else "values"


def open_recorded_images(folder: Path, count: int) -> Iterator[io.BytesIO]:
    """Yield the first images, at most ``count``, as open files.

    Raises:
        DataError: A file is damaged, or columns are missing or unclear.
    """
    parts, manifest = _listed(folder)
    columns = _columns(folder / next(iter(manifest.entries)))
    found = (_images(folder, files, columns) for files in parts.values())
    for _, content in itertools.islice(itertools.chain.from_iterable(found), count):
        yield io.BytesIO(content)


def _listed(folder: Path) -> tuple[Mapping[str, FolderFiles], DataManifest]:
    """Return the files by part, ``all`` or those of `RawImages`, and the manifest of all files."""
    folders, files = entries(folder, _LAYOUT)
    inside = {
        f"{name}/{file}": state
        for name in folders
        if name in _FOLDERS
        for file, state in entries(folder / name, _LAYOUT)[1].items()
    }
    records = {
        name: state
        for name, state in {**files, **inside}.items()
        if name.endswith(_SUFFIXES) and not name.rpartition("/")[2].startswith(_INTERMEDIATE)
    }
    return files_by_part(folder, records), DataManifest("files", records)


def _columns(path: Path) -> _Columns:
    """Return the columns of a data set, from one of its files."""
    with _damage_named(path):
        schema = _schema(path)
    images = [field.name for field in schema if _is_image(field.type)]
    if len(images) != 1:
        raise DataError(
            f"{path} has {len(images)} columns of encoded images among {', '.join(schema.names)}; "
            f"{_LAYOUT}"
        )
    others = [name for name in schema.names if name not in (*images, _GROUP)]
    declared = _declared_names(schema)
    for known in (others, _TARGETS, declared):
        able = [name for name in others if name in known]
        if len(able) == 1:
            grouped = _GROUP in schema.names
            return _Columns(images[0], able[0], declared.get(able[0]), grouped)
    raise DataError(
        f"{path} has the columns {', '.join(others) or 'none'} beside the image; which one holds "
        "the targets is unclear: keep one, or call it label"
    )


def _is_image(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _is_image(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _declared_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of classes by column, as Hugging Face's library stores them in a schema."""
    try:
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features: Mapping[str, Any] = about["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    found = {}
    for name, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, Mapping) else {}
        if isinstance(inner, Mapping) and isinstance(inner.get("names"), list):
            found[name] = tuple(map(str, inner["names"]))
    return found


def _schema(path: Path) -> pa.Schema:
    import pyarrow as pa
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return pa.parquet.read_schema(path)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_stream(file).schema


def _batches(path: Path, column: str) -> Iterator[Sequence[Any]]:
    """Yield the entries of a column as Python objects, some at a time."""
    import pyarrow as pa
    import pyarrow.parquet

    with _damage_named(path):
        if path.suffix == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[column]):
                    yield batch.column(0).to_pylist()
            return
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
            for batch in stream:
                cells = batch.column(column)
                for start in range(0, len(cells), _ROWS):
                    yield cells.slice(start, _ROWS).to_pylist()


def _images(folder: Path, files: FolderFiles, columns: _Columns) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each image file."""
    for name in files:
        rows = itertools.chain.from_iterable(_batches(folder / name, columns.image))
        for number, row in enumerate(rows):
            content = row.get("bytes") if isinstance(row, Mapping) else row
            if content is None:
                raise DataError(
                    f"row {number} of {folder / name} has no image; remove it, or store the bytes "
                    "of the images and not only their paths"
                )
            yield f"{name}: row {number}", content


def _encoded(
    folder: Path, files: FolderFiles, columns: _Columns, size: ImageSize | None, channels: int
) -> EncodedImages:
    for name, content in _images(folder, files, columns):
        decode = partial(_decode, content, size, channels)
        yield EncodedImage(name, xxhash.xxh3_128_hexdigest(content), decode)


def _decode(content: bytes, size: ImageSize | None, channels: int) -> tuple[Images]:
    return (read_image(io.BytesIO(content), channels, size),)


def _column(folder: Path, files: FolderFiles, column: str) -> list[Any]:
    """Return the entries of a column of a part as Python objects."""
    found: list[Any] = []
    for name in files:
        for rows in _batches(folder / name, column):
            found.extend(rows)
        if None in found:
            raise DataError(
                f"{folder / name} has a row without {column}; remove it, or add the value"
            )
    return found


def _names_of(cells: Sequence[Any]) -> tuple[str, ...] | None:
    """Return the names of classes that are given as texts."""
    if cells and all(isinstance(cell, str) for cell in cells):
        return tuple(sorted(set(cells)))
    return None


def _targets(found: Sequence[Any], names: tuple[str, ...] | None, where: str) -> Targets:
    """Return classes, int64 (N,), or values, float32 (N, K), of a part."""
    if not found:
        raise DataError(f"{where} has no rows; {_LAYOUT}")
    if isinstance(found[0], str) and names is not None:
        numbers = {name: number for number, name in enumerate(names)}
        odd = next((entry for entry in found if entry not in numbers), None)
        if odd is not None:
            raise DataError(f"{where} has {odd!r}, a class that the images to train on do not have")
        return np.array([numbers[entry] for entry in found], np.int64)
    if isinstance(found[0], list) and names is not None:
        labels = np.zeros((len(found), len(names)), np.float32)
        for row, entry in enumerate(found):
            labels[row, entry] = 1
        return labels
    try:
        targets = np.array(found, dtype=np.int64 if isinstance(found[0], int) else np.float32)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{where} holds {type(found[0]).__name__}; expected whole numbers or texts for "
            "classes, or floats, or lists of as many floats, for values"
        ) from error
    if targets.dtype == np.float32:
        targets = targets.reshape(len(targets), -1)
        if not np.isfinite(targets).all():
            raise DataError(f"{where} has numbers that are not finite; remove these rows")
    return targets


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, KeyError) as error:
        [reason, *_] = str(error).splitlines() or [type(error).__name__]
        raise DataError(f"{path} cannot be read ({reason}); {_LAYOUT}") from error
