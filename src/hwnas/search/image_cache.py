"""Image arrays on disk: written once, opened whole or, where they are large, memory-mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from hwnas.atomic import replacing
from hwnas.errors import DataError

__all__ = ["ImageCache", "Images", "source_key", "write_images"]

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
            key: Names the set and, by a hash, the state of its source.
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
        mapped = self.maps(sum(file.stat().st_size for file in files.values()))
        return {name: _open(file, mapped) for name, file in files.items()}


def _open(file: Path, mapped: bool) -> Images:
    try:
        images: Images = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{file} is damaged ({error}); delete it, it is made again from the source"
        ) from error
    return images


def source_key(source: Path, files: Iterable[Path] | None = None) -> str:
    """Names what is made from a source, and changes when the source does.

    Args:
        source: A file, or a folder.
        files: Of the folder, all that count.
    """
    states = hashlib.sha256(str(source.resolve()).encode())
    for file in (source,) if files is None else files:
        state = file.stat()
        states.update(f"{file.name}|{state.st_size}|{state.st_mtime_ns}".encode())
    return f"{source.stem}-{states.hexdigest()[:12]}"


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
