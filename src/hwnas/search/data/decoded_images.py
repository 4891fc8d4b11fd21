"""On-disk cache of decoded images, in arrays that grow image by image.

Each array ``train-VERSION.npy`` has a journal ``train-VERSION.jsonl``, which names the image of
each row. Interrupted decoding continues at the last checkpoint. If some images of a data set have
changed, only these are decoded again; the rows of the others are copied.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hwnas.atomic import locked, storage_errors
from hwnas.errors import DamagedImage, DataError
from hwnas.search.data.image_cache import ImageCache, Images, check_same_shape, is_held
from hwnas.search.engine.threads import torch_threads

__all__ = [
    "DecodedPart",
    "DecodedParts",
    "EncodedImage",
    "EncodedImages",
    "EncodedPart",
    "decode_parts",
]

_SCHEMA = 1
_CHECKPOINT_S = 5.0
_NAMED = 5
_AT_ONCE = 8
_MOST_THREADS = 8  # each holds a whole photograph

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
class EncodedPart:
    """Images of one part of a data set before decoding.

    Attributes:
        images: Function that yields all images of the part, in order; called only if something has
            to be decoded.
        version: Name of this list of images; changes with any of them.
        count: Number of images, if it is known before they are read.
    """

    images: Callable[[], EncodedImages]
    version: str
    count: int | None = None


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


@dataclass(frozen=True)
class DecodedParts:
    """Decoded images of all parts of a data set.

    Attributes:
        parts: Result of decoding by part.
        arrays: Arrays by name, (N, ...) uint8; a part without images has none.
        skipped: Names of damaged images that were left out.
    """

    parts: Mapping[str, DecodedPart]
    arrays: Mapping[str, Images]
    skipped: tuple[str, ...]


def decode_parts(
    place: str,
    parts: Mapping[str, EncodedPart],
    cache: ImageCache,
    what: str,
    skip_damaged: bool,
    beside: str | None = None,
) -> DecodedParts:
    """Decode the images of a data set that are not decoded yet, and open the arrays.

    Args:
        place: Folder in the cache of arrays that were decoded in the same way.
        parts: Images by part; each part gets an array of its name.
        cache: Cache for the arrays.
        what: Name of the data set, for messages.
        skip_damaged: Whether to leave out images that cannot be decoded.
        beside: What each image has beside its pixels, such as ``"masks"``, for arrays called
            ``train-masks`` and so on; None if it has nothing.

    Raises:
        DataError: Images are damaged that are not to be skipped, or all images of a part are, or an
            image has another shape than the first one.
        StorageError: The cache cannot be written.
    """
    counts = [encoded.count for encoded in parts.values()]
    count = None if None in counts else sum(filter(None, counts))
    decoded: dict[str, DecodedPart] = {}
    for part, encoded in parts.items():
        before = sum(each.count for each in decoded.values())
        decoded[part] = _decode_part(
            cache.folder / place,
            [part] if beside is None else [part, f"{part}-{beside}"],
            encoded,
            lambda done, before=before: cache.on_decoded(before + done, count),  # type: ignore[misc]
        )
    skipped = _check_damaged(decoded.values(), what, skip_damaged)
    files = {name: file for part in decoded.values() for name, file in part.files.items()}
    return DecodedParts(decoded, cache.open(files), skipped)


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


def _decode_part(
    folder: Path, arrays: Sequence[str], part: EncodedPart, on_image: Callable[[int], None]
) -> DecodedPart:
    """Decode the images of one part of a data set that are not decoded yet.

    Damaged images are left out and reported; all others are kept.

    Args:
        folder: Folder of arrays that were decoded in the same way. Arrays of other versions of this
            part supply the rows of unchanged images. Once this version is complete, they are
            removed, unless another process maps them.
        arrays: Names of the arrays to which each image adds a row; the first one names the part.
        part: Images of the part.
        on_image: Callback after each image, with the number of images of the part so far.
    """
    writer = _Writer(folder, arrays, part.version)
    with locked(folder), storage_errors(folder):
        if not writer.is_complete():
            # If an image fails, the generator is closed at once: it may hold open files.
            with closing(part.images()) as encoded:
                writer.write(encoded, on_image)
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

    def write(self, images: Iterable[EncodedImage], on_image: Callable[[int], None]) -> None:
        """Decode the missing images, continuing at the last checkpoint."""
        if self.journal.complete or not self._is_sound():
            self.journal = _Journal()
            self.journal_file.unlink(missing_ok=True)
        done, known = self.journal.count, self._known_rows()
        with ExitStack() as stack:
            self._open(stack)
            try:
                missing = itertools.islice(images, done, None)
                with closing(_decoded_ahead(missing, known)) as decoded:
                    for image, pixels in decoded:
                        self._add(image, pixels)
                        on_image(self.journal.count)
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

    def _add(self, image: EncodedImage, pixels: tuple[Images, ...] | DamagedImage) -> None:
        if isinstance(pixels, DamagedImage):
            reason = pixels.reason or str(pixels)
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
            if any(is_held(file) for file in files):
                continue
            path.unlink(missing_ok=True)
            for file in files:
                file.unlink(missing_ok=True)


def _decoded_ahead(
    images: Iterable[EncodedImage], known: Mapping[tuple[str, str], _Row]
) -> Generator[tuple[EncodedImage, tuple[Images, ...] | DamagedImage]]:
    """Yield images with their decoded rows, or why they cannot be decoded, in order.

    Some threads decode the next images at the same time, a few at once, since each exchange with a
    thread waits for Python's lock; Pillow and PyTorch compute without it.
    """
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    waiting: deque[tuple[list[EncodedImage], Future[list[_Outcome]]]] = deque()
    left = iter(images)
    with torch_threads(1):
        try:
            while some := list(itertools.islice(left, _AT_ONCE)):
                rows = [known.get((image.name, image.state)) for image in some]
                reads = [
                    image.decode if row is None else row.read
                    for image, row in zip(some, rows, strict=True)
                ]
                waiting.append((some, pool.submit(_outcomes, reads)))
                if len(waiting) > threads:
                    yield from _decoded(*waiting.popleft())
            while waiting:
                yield from _decoded(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


_Outcome = tuple[Images, ...] | BaseException
"""Rows of an image in each array, or why it cannot be decoded."""


def _outcomes(reads: Iterable[Callable[[], tuple[Images, ...]]]) -> list[_Outcome]:
    """Return what some functions return or raise; those after an error that ends all are left."""
    found: list[_Outcome] = []
    for read in reads:
        try:
            found.append(read())
        except DamagedImage as error:
            found.append(error)
        except BaseException as error:
            return [*found, error]
    return found


def _decoded(
    images: Iterable[EncodedImage], outcomes: Future[list[_Outcome]]
) -> Iterator[tuple[EncodedImage, tuple[Images, ...] | DamagedImage]]:
    """Yield images with their outcomes; raise the error that ends all."""
    for image, outcome in zip(images, outcomes.result(), strict=False):
        if isinstance(outcome, BaseException) and not isinstance(outcome, DamagedImage):
            raise outcome
        yield image, outcome


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


def _check_damaged(parts: Iterable[DecodedPart], what: str, skip: bool) -> tuple[str, ...]:
    """Raise if there are damaged images, or return their names if they are to be skipped."""
    parts = list(parts)
    damaged = [found for part in parts for found in part.damaged.values()]
    count = sum(part.count for part in parts)
    if not damaged:
        return ()
    if skip and all(part.files for part in parts):
        return tuple(dict.fromkeys(name for name, _ in damaged))
    names = list(dict.fromkeys(f"{name} ({reason})" for name, reason in damaged))
    named = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    verb, them = ("is", "it") if len(damaged) == 1 else ("are", "them")
    remedy = (
        "no undamaged image is left for training or for testing; repair some"
        if skip
        else f"repair or remove {them}, or leave {them} out with data.skip_damaged = true"
    )
    raise DataError(
        f"{len(damaged):,} of {count:,} images of {what} {verb} damaged: {named}{more}; {remedy}"
    )
