"""On-disk cache of image arrays: written once, then read whole or, if large, memory-mapped."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from hwnas.atomic import replacing, write_json
from hwnas.errors import DataError

__all__ = [
    "PIXELS_VERSION",
    "ImageCache",
    "Images",
    "cache_key",
    "check_same_shape",
    "hold",
    "is_held",
    "release",
    "write_images",
]

PIXELS_VERSION = 3
"""Version of the decoded pixels: increased when the same files give other pixels than before, so
that older cache entries are not used.

2: 16-bit images keep their range; JPEG files of an archive are turned upright.
3: Images are resized in whole numbers; large JPEG files are decoded at a reduced size.
"""

_LEFTOVER_S = 3600.0
_MOST_READ_BYTES = 2**27
_read_bytes = 0

Images = npt.NDArray[np.uint8]
"""uint8 (N, H, W, C), or (N, H, W) before grey images get their channel axis."""


@dataclass(frozen=True)
class ImageCache:
    """Cache folder for arrays that are costly to make or too large for memory.

    Runs share it: names of arrays contain what they were made from, and arrays that a process maps
    are not removed.

    Attributes:
        folder: Folder of the ``.npy`` files; they may be deleted if no run works.
        map_above: Size in bytes above which a data set is memory-mapped.
        on_decoded: Callback after each decoded image, with the number of images so far and that of
            all images, if it is known.
    """

    folder: Path
    map_above: int
    on_decoded: Callable[[int, int | None], None] = lambda done, count: None

    def maps(self, size: int) -> bool:
        """Return whether a data set of this many bytes is memory-mapped."""
        return size > self.map_above

    def arrays(
        self, key: str, writers: Mapping[str, Callable[[BinaryIO], None]]
    ) -> dict[str, Images]:
        """Return the arrays of one data set, written first if they are missing.

        Args:
            key: Name of the data set, with a hash of its source's state and its preparation.
            writers: For each array, a function that writes the array as a ``.npy`` file; called
                only if the file does not exist yet.

        Raises:
            DataError: A cached file is damaged.
            StorageError: A file cannot be written.
        """
        files = {name: self.folder / key / f"{name}.npy" for name in writers}
        for name, write in writers.items():
            if not files[name].exists():
                _remove_leftovers(self.folder / key)
                with replacing(files[name]) as temporary, temporary.open("wb") as file:
                    write(file)
        return self.open(files)

    def open(self, files: Mapping[str, Path]) -> dict[str, Images]:
        """Open the ``.npy`` files of one data set, memory-mapped if they are large in total.

        Raises:
            DataError: A file is damaged.
        """
        mapped = self.maps(sum(file.stat().st_size for file in files.values()))
        return {name: _open(file, mapped) for name, file in files.items()}

    def remembered(self, key: str, version: str, compute: Callable[[], int]) -> int:
        """Return a cached number that is costly to compute, such as the channels of a data set.

        Args:
            key: Name of the data set and of the number.
            version: Version of the data set; if it has changed, the number is computed again.
            compute: Function that computes the number.

        Raises:
            StorageError: The cache cannot be written.
        """
        path = self.folder / f"{key}.json"
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["version"] == version:
                return int(kept["value"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        value = compute()
        write_json(path, {"version": version, "value": value})
        return value


def _remove_leftovers(folder: Path) -> None:
    """Remove partly written files that have not grown for an hour: their writers were killed."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFTOVER_S:
                path.unlink()


def _open(file: Path, mapped: bool) -> Images:
    try:
        images: Images = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{file} is damaged ({error}); delete it, and the next run makes it again from the "
            "source"
        ) from error
    if isinstance(images, np.memmap):
        hold(images)
    return images


def hold(images: np.memmap[Any, Any]) -> None:
    """Keep other processes from removing the file of mapped images, as long as they are mapped.

    On file systems without locks, nothing keeps them from it.
    """
    with contextlib.suppress(OSError):
        handle = os.open(str(images.filename), os.O_RDONLY)
        weakref.finalize(images._mmap, os.close, handle)  # type: ignore[attr-defined]
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)


def release(images: Images, size: int) -> None:
    """Give back the memory of mapped images, once many of them were read.

    The system would only do so when it needs the memory, and until then counts them as memory of
    this process.

    Args:
        images: Images that were read; nothing happens if they are not mapped.
        size: Number of bytes that were read of them.
    """
    global _read_bytes
    if not isinstance(images, np.memmap):
        return
    _read_bytes += size
    if _read_bytes > _MOST_READ_BYTES:
        _read_bytes = 0
        images._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def is_held(file: Path) -> bool:
    """Return whether any process maps the images of a file."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def cache_key(source: Path, *parts: object) -> str:
    """Return the name of a cache folder for data made from a source.

    Args:
        source: File or folder; another one with the same name gets another key.
        parts: Everything that determines the pixels, besides the source's content and
            `PIXELS_VERSION`.
    """
    place = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:8]
    return "-".join(map(str, (source.stem, place, *parts, f"v{PIXELS_VERSION}")))


def check_same_shape(name: str, image: Images, first: tuple[int, ...]) -> None:
    """Raise `DataError` if an image has another shape than the first of its set.

    Args:
        name: Name of the image, for the message.
        image: Pixels, uint8 (H, W, C).
        first: Shape of the first image.
    """
    if image.shape != first:
        raise DataError(
            f"{name} has shape {image.shape} but the first has {first} (height, width, channels); "
            "all images of a set need one size (data.size resizes the images of a folder)"
        )


def write_images(file: BinaryIO, images: Iterable[tuple[str, Images]], count: int) -> None:
    """Write images one by one into one ``.npy`` array.

    Args:
        file: Output file, open for writing.
        images: Name and pixels of each image, uint8 (H, W, C), all of one shape.
        count: Number of images, at least 1.

    Raises:
        DataError: The shape of an image differs from that of the first.
    """
    shape: tuple[int, ...] | None = None
    for name, image in images:
        if shape is None:
            shape = image.shape
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
            np.lib.format.write_array_header_1_0(file, header)
        check_same_shape(name, image, shape)
        # No memory map: on a full disk, writing to one kills the process instead of raising.
        file.write(image.tobytes())
