"""Image arrays on disk: written once, opened whole or, where they are large, memory-mapped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from hwnas.atomic import replacing, write_json
from hwnas.errors import DataError

__all__ = ["PIXELS_VERSION", "ImageCache", "Images", "cache_key", "write_images"]

PIXELS_VERSION = 2
"""Raised whenever the same files give other pixels than before, so that none are kept.

2: 16-bit images keep their range; JPEG files of an archive are turned upright.
"""

Images = npt.NDArray[np.uint8]
"""uint8 (N, H, W, C), or (N, H, W) before the channels of grey images are written out."""


@dataclass(frozen=True)
class ImageCache:
    """A folder for arrays that are costly to make or too large for memory.

    Attributes:
        folder: Where the ``.npy`` files are kept; they may be deleted between runs.
        map_above: Size in bytes above which a set is memory-mapped.
    """

    folder: Path
    map_above: int

    def maps(self, size: int) -> bool:
        """Whether a set of this many bytes is memory-mapped."""
        return size > self.map_above

    def arrays(
        self, key: str, writers: Mapping[str, Callable[[BinaryIO], None]]
    ) -> dict[str, Images]:
        """The arrays of one set.

        Args:
            key: Names the set, by a hash the state of its source, and how it was prepared.
            writers: For each array, a function that writes it as a ``.npy`` file; it is called
                only where the file is not there yet.

        Raises:
            DataError: A kept file was damaged later on.
            StorageError: A file cannot be written.
        """
        files = {name: self.folder / key / f"{name}.npy" for name in writers}
        for name, write in writers.items():
            if not files[name].exists():
                with replacing(files[name]) as temporary, temporary.open("wb") as file:
                    write(file)
        return self.open(files)

    def open(self, files: Mapping[str, Path]) -> dict[str, Images]:
        """Open the ``.npy`` files of one set, memory-mapped where they are large together.

        Raises:
            DataError: A file was damaged later on.
        """
        mapped = self.maps(sum(file.stat().st_size for file in files.values()))
        return {name: _open(file, mapped) for name, file in files.items()}

    def remembered(self, key: str, version: str, compute: Callable[[], int]) -> int:
        """Return a number that is costly to find out, such as the channels of a set.

        Args:
            key: Names the set and the number.
            version: Of the set; where it changed, the number is found out again.
            compute: Finds it out.

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


def _open(file: Path, mapped: bool) -> Images:
    try:
        images: Images = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{file} is damaged ({error}); delete it, it is made again from the source"
        ) from error
    return images


def cache_key(source: Path, *parts: object) -> str:
    """Return a folder name for what is made from a source.

    Args:
        source: A file, or a folder; others of the same name get other keys.
        parts: All that decides the pixels, beside the source's content and `PIXELS_VERSION`.
    """
    place = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:8]
    return "-".join(map(str, (source.stem, place, *parts, f"v{PIXELS_VERSION}")))


def write_images(file: BinaryIO, images: Iterable[tuple[str, Images]], count: int) -> None:
    """Write images that come one by one as one ``.npy`` array.

    Args:
        file: Open for writing.
        images: For each image its name and uint8 (H, W, C), all of one shape.
        count: Number of images; at least 1.

    Raises:
        DataError: An image has another shape than the first.
    """
    shape: tuple[int, ...] | None = None
    for name, image in images:
        if shape is None:
            shape = image.shape
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
            np.lib.format.write_array_header_1_0(file, header)
        if image.shape != shape:
            raise DataError(
                f"{name} has shape {image.shape} but the first has {shape} (height, width, "
                "channels); all images of a set need one size (a folder's are resized by data.size)"
            )
        # Not through a memory map: on a full disk that kills the process instead of raising.
        file.write(image.tobytes())
