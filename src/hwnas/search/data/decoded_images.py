"""On-disk cache of decoded images, in arrays that grow image by image.

Each array ``train-VERSION.npy`` has a journal ``train-VERSION.jsonl``, which names the image of
each row. Interrupted decoding continues at the last checkpoint. If some images of a data set have
changed, only these are decoded again; the rows of the others are copied.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hwnas.atomic import locked, storage_errors
from hwnas.errors import DamagedImage, DataError
from hwnas.search.data.image_cache import Images, check_same_shape

__all__ = ["DecodedPart", "EncodedImage", "EncodedImages", "decode_images", "refuse_damaged"]

_SCHEMA = 1
_CHECKPOINT_S = 5.0
_NAMED = 5

Shape = tuple[int, ...]


@dataclass(frozen=True)
class EncodedImage:
    """Image of a data set before decoding.

    Attributes:
        name: Name in the data set, which identifies the image, also in messages.
        state: Text that changes with the content of the image.
        decode: Function that returns the image's row of each array, uint8; raises `DamagedImage`
            if the image cannot be decoded.
    """

    name: str
    state: str
    decode: Callable[[], tuple[Images, ...]]


EncodedImages = Generator[EncodedImage, None, None]


@dataclass(frozen=True)
class DecodedPart:
    """Decoded images of one part of a data set, training or test.

    Attributes:
        files: Complete ``.npy`` files by array name; empty if all images are damaged.
        count: Number of images that were given.
        damaged: Name and reason for each damaged image, by its number among those given, from 0.
    """

    files: Mapping[str, Path]
    count: int
    damaged: Mapping[int, tuple[str, str]]

    @property
    def kept(self) -> Sequence[int]:
        """Numbers of the images that have a row, in the order of the rows."""
        return [number for number in range(self.count) if number not in self.damaged]


@dataclass
class _Journal:
    """Content of a journal: the images in the rows of a part's arrays, and the damaged images.

    Attributes:
        shapes: Shape of a row of each array; empty as long as there is no row.
        rows: Name and state of the image of each row.
        damaged: Name and reason for each damaged image, by its number among all images.
        complete: Whether every image was processed.
    """

    shapes: list[Shape] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)
    damaged: dict[int, tuple[str, str]] = field(default_factory=dict)
    complete: bool = False

    @property
    def count(self) -> int:
        """Number of images processed so far."""
        return len(self.rows) + len(self.damaged)

    @classmethod
    def read(cls, path: Path) -> _Journal:
        """Read the complete lines of a journal; return an empty journal if there is no file."""
        journal = cls()
        try:
            # Text after the last line break is an incomplete line.
            lines = path.read_text(encoding="utf-8").split("\n")[:-1]
            entries = json.loads(f"[{','.join(lines)}]")
        except (OSError, ValueError):
            return journal
        for entry in entries:
            if isinstance(entry, dict):
                if entry.get("schema") != _SCHEMA:
                    return cls()
                journal.shapes = [tuple(shape) for shape in entry.get("shapes", journal.shapes)]
                journal.complete = bool(entry.get("complete"))
            elif len(entry) == 2:
                journal.rows.append((entry[0], entry[1]))
            else:
                journal.damaged[journal.count] = (entry[0], entry[2])
        return journal


def decode_images(
    folder: Path,
    arrays: Sequence[str],
    images: Callable[[], EncodedImages],
    version: str,
) -> DecodedPart:
    """Decode the images of one part of a data set that are not decoded yet.

    Damaged images are left out and reported; all others are kept.

    Args:
        folder: Folder of arrays that were decoded in the same way. Arrays of other versions of this
            part supply the rows of unchanged images, and are removed once this version is complete.
        arrays: Names of the arrays to which each image adds a row; the first one names the part.
        images: Function that yields all images of the part, in order; called only if something has
            to be decoded.
        version: Name of this list of images; changes with any of them.

    Raises:
        DataError: An image has another shape than the first one.
        StorageError: A file cannot be written.
    """
    writer = _Writer(folder, arrays, version)
    with locked(folder), storage_errors(folder):
        if not writer.is_complete():
            # If an image fails, the generator is closed at once: it may hold open files.
            with closing(images()) as encoded:
                writer.write(encoded)
    journal = writer.journal
    files = dict(zip(arrays, writer.files, strict=True)) if journal.rows else {}
    return DecodedPart(files, journal.count, journal.damaged)


class _Writer:
    """Writer that appends rows to the arrays of one version of a part."""

    def __init__(self, folder: Path, arrays: Sequence[str], version: str) -> None:
        self.folder, self.arrays = folder, arrays
        self.journal_file = folder / f"{arrays[0]}-{version}.jsonl"
        self.files = self._files(version)
        self.journal = _Journal.read(self.journal_file)
        self._outs: list[BinaryIO] = []
        self._lines: list[str] = []
        self._checked = time.monotonic()

    def _files(self, version: str) -> list[Path]:
        return [self.folder / f"{name}-{version}.npy" for name in self.arrays]

    def is_complete(self) -> bool:
        """Read the journal again and return whether all images are decoded.

        Another process may have decoded them in the meantime.
        """
        self.journal = _Journal.read(self.journal_file)
        sizes = [_file_bytes(len(self.journal.rows), shape) for shape in self.journal.shapes]
        return self.journal.complete and sizes == [
            file.stat().st_size if file.exists() else -1
            for file, _ in zip(self.files, sizes, strict=False)
        ]

    def write(self, images: Iterable[EncodedImage]) -> None:
        """Decode the missing images, continuing at the last checkpoint."""
        if self.journal.complete or not self._is_sound():
            self.journal = _Journal()
            self.journal_file.unlink(missing_ok=True)
        done, known = self.journal.count, self._known_rows()
        with ExitStack() as stack:
            self._open(stack)
            try:
                for number, image in enumerate(images):
                    if number >= done:
                        self._add(image, known)
            finally:
                self._checkpoint()
            if self.journal.rows:
                self._write_headers()
        self.journal.complete = True
        self._log({"schema": _SCHEMA, "complete": True})
        self._append_lines()
        self._remove_others()

    def _is_sound(self) -> bool:
        """Return whether the files hold at least the rows that the journal names."""
        least = [_file_bytes(len(self.journal.rows), shape) for shape in self.journal.shapes]
        return all(
            file.exists() and file.stat().st_size >= size
            for file, size in zip(self.files, least, strict=False)
        )

    def _open(self, stack: ExitStack) -> None:
        for place, file in enumerate(self.files):
            out = stack.enter_context(file.open("r+b" if self.journal.shapes else "wb"))
            if self.journal.shapes:
                out.truncate(_file_bytes(len(self.journal.rows), self.journal.shapes[place]))
                out.seek(0, os.SEEK_END)
            self._outs.append(out)
        if self.journal_file.exists():  # drop an incomplete last line
            text = self.journal_file.read_text(encoding="utf-8")
            os.truncate(self.journal_file, len(text[: text.rfind("\n") + 1].encode()))

    def _add(self, image: EncodedImage, known: Mapping[tuple[str, str], _Row]) -> None:
        row = known.get((image.name, image.state))
        try:
            pixels = image.decode() if row is None else row.read()
        except DamagedImage as error:
            reason = error.reason or str(error)
            self.journal.damaged[self.journal.count] = (image.name, reason)
            self._log([image.name, image.state, reason])
            return
        if not self.journal.shapes:
            self.journal.shapes = [array.shape for array in pixels]
            self._log({"schema": _SCHEMA, "shapes": self.journal.shapes})
            self._write_headers()
        for array, shape, out in zip(pixels, self.journal.shapes, self._outs, strict=True):
            check_same_shape(image.name, array, shape)
            # No memory map: on a full disk, writing to one kills the process instead of raising.
            out.write(np.ascontiguousarray(array).data)
        self.journal.rows.append((image.name, image.state))
        self._log([image.name, image.state])
        if time.monotonic() - self._checked > _CHECKPOINT_S:
            self._checkpoint()

    def _log(self, entry: Any) -> None:
        self._lines.append(json.dumps(entry) + "\n")

    def _write_headers(self) -> None:
        for out, shape in zip(self._outs, self.journal.shapes, strict=True):
            out.seek(0)
            out.write(_header(len(self.journal.rows), shape))
            out.seek(0, os.SEEK_END)
            out.flush()
            os.fsync(out.fileno())

    def _checkpoint(self) -> None:
        """Write the rows to disk, and only then the journal lines that name them."""
        for out in self._outs:
            out.flush()
            os.fsync(out.fileno())
        self._append_lines()
        self._checked = time.monotonic()

    def _append_lines(self) -> None:
        with self.journal_file.open("a", encoding="utf-8") as file:
            file.write("".join(self._lines))
            file.flush()
            os.fsync(file.fileno())
        self._lines.clear()

    def _others(self) -> list[tuple[Path, list[Path]]]:
        """Return the journal and the arrays of each other version of this part."""
        part = self.arrays[0]
        return [
            (path, self._files(path.stem.removeprefix(f"{part}-")))
            for path in sorted(self.folder.glob(f"{part}-*.jsonl"))
            if path != self.journal_file
        ]

    def _known_rows(self) -> dict[tuple[str, str], _Row]:
        known: dict[tuple[str, str], _Row] = {}
        for path, files in self._others():
            journal = _Journal.read(path)
            if not journal.rows or not all(file.exists() for file in files):
                continue
            maps = [
                _mapped(file, len(journal.rows), shape)
                for file, shape in zip(files, journal.shapes, strict=True)
            ]
            if all(each is not None for each in maps):
                sources = [each for each in maps if each is not None]
                known |= {image: _Row(sources, row) for row, image in enumerate(journal.rows)}
        return known

    def _remove_others(self) -> None:
        for path, files in self._others():
            path.unlink(missing_ok=True)
            for file in files:
                file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Row:
    """Row of one image in the arrays of an earlier version."""

    arrays: Sequence[Images]
    number: int

    def read(self) -> tuple[Images, ...]:
        return tuple(np.array(array[self.number]) for array in self.arrays)


def _header(count: int, shape: Shape) -> bytes:
    """Return the header of a ``.npy`` file; NumPy pads it to the same length for any count."""
    file = BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _file_bytes(count: int, shape: Shape) -> int:
    return len(_header(count, shape)) + count * int(np.prod(shape, dtype=np.int64))


def _mapped(file: Path, count: int, shape: Shape) -> Images | None:
    """Memory-map the first rows of a possibly incomplete array; return None if they are missing."""
    if file.stat().st_size < _file_bytes(count, shape):
        return None
    return np.memmap(file, np.uint8, "r", len(_header(count, shape)), (count, *shape))


def refuse_damaged(parts: Iterable[DecodedPart], what: str, skip: bool) -> tuple[str, ...]:
    """Raise if there are damaged images, or return their names if they are to be skipped.

    Args:
        parts: All parts of a data set.
        what: Name of the data set, for messages.
        skip: Whether to leave damaged images out.

    Raises:
        DataError: There are damaged images that are not to be skipped, or all images of a part are
            damaged.
    """
    parts = list(parts)
    damaged = [found for part in parts for found in part.damaged.values()]
    count = sum(part.count for part in parts)
    if not damaged:
        return ()
    if skip and all(part.files for part in parts):
        return tuple(name for name, _ in damaged)
    named = ", ".join(f"{name} ({reason})" for name, reason in damaged[:_NAMED])
    more = f" and {len(damaged) - _NAMED:,} more" if len(damaged) > _NAMED else ""
    verb, them = ("is", "it") if len(damaged) == 1 else ("are", "them")
    remedy = (
        "no undamaged image is left for training or for testing; repair some"
        if skip
        else f"repair or remove {them}, or leave {them} out with data.skip_damaged = true"
    )
    raise DataError(
        f"{len(damaged):,} of {count:,} images of {what} {verb} damaged: {named}{more}; {remedy}"
    )
