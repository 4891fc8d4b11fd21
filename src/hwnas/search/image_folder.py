"""Image sets as folders: one folder a class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from hwnas.errors import DataError
from hwnas.search.image_cache import ImageCache, Images, source_key, write_images
from hwnas.search.raw_images import RawImages, Targets, read_image, resize

__all__ = ["channels_of", "entries", "read_folder", "write_files"]

_LAYOUT = "expected <class>/<image>, or train/<class>/<image> and test/<class>/<image>"
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")

Classes = Mapping[str, Sequence[Path]]
"""The image files of each class."""


def read_folder(folder: Path, size: int | None, cache: ImageCache) -> RawImages:
    """Read one folder a class, divided by the user (``train``, ``test``) or not.

    Images are read as deployment reads them: grey where all are grey, otherwise red, green and
    blue, without transparency. Names that begin with a dot are left out. The decoded set is kept in
    the cache.

    Args:
        folder: Holds the class folders, or ``train`` and ``test``.
        size: Side in pixels that images are resized to, without keeping their proportions; None
            keeps their own size, which must be one for all.
        cache: Where the decoded images are kept.

    Raises:
        DataError: The folders are laid out otherwise, a class is empty, a file is not an image, or
            sizes differ.
        StorageError: The cache cannot be written.
    """
    parts = _parts(folder)
    files = {
        part: [file for members in classes.values() for file in members]
        for part, classes in parts.items()
    }
    every_file = [file for members in files.values() for file in members]
    channels = channels_of(every_file)
    images = cache.arrays(
        f"{source_key(folder, every_file)}-{size or 'own'}",
        {part: partial(write_files, members, size, channels) for part, members in files.items()},
    )
    names = tuple(parts.get("train", parts.get("all", ())))
    targets = {part: _targets(classes, names) for part, classes in parts.items()}
    if "all" in parts:
        return RawImages(images["all"], targets["all"], names)
    return RawImages(images["train"], targets["train"], names, (images["test"], targets["test"]))


def _parts(folder: Path) -> dict[str, Classes]:
    """Either the part ``all`` or the parts ``train`` and ``test``."""
    found = {path.name for path in _folders(folder)}
    if not {"train", "test"} <= found:
        return {"all": _classes(folder)}
    if found != {"train", "test"}:
        other = min(found - {"train", "test"})
        raise DataError(f"{folder} has {other!r} beside train and test; {_LAYOUT}")
    train, test = _classes(folder / "train"), _classes(folder / "test")
    new = sorted(set(test) - set(train))
    if new:
        raise DataError(f"{folder}/test has a class {new[0]!r} that {folder}/train has not")
    return {"train": train, "test": test}


def _classes(folder: Path) -> Classes:
    classes = {path.name: _images(path) for path in _folders(folder)}
    if not classes:
        raise DataError(f"{folder} has no class folders; {_LAYOUT}")
    return classes


def _folders(folder: Path) -> list[Path]:
    found = entries(folder, _LAYOUT)
    stray = [path for path in found if not path.is_dir()]
    if stray:
        raise DataError(f"{stray[0]} lies beside the class folders; {_LAYOUT}")
    return found


def _images(folder: Path) -> list[Path]:
    files = entries(folder, _LAYOUT)
    if not files:
        raise DataError(f"{folder} has no images; {_LAYOUT}")
    nested = [path for path in files if path.is_dir()]
    if nested:
        raise DataError(f"{nested[0]} is a folder where an image should be; {_LAYOUT}")
    return files


def entries(folder: Path, layout: str) -> list[Path]:
    """What is in a folder, sorted, but for names that begin with a dot.

    Raises:
        DataError: There is no such folder, or it cannot be read; the message ends with ``layout``.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); {layout}") from error


def channels_of(files: Iterable[Path]) -> int:
    """1 where all files are grey, otherwise 3.

    Raises:
        DataError: A file is not an image of 8 bits a channel.
    """
    return 1 if {_mode(file) for file in files} <= {"1", "L"} else 3


def _mode(file: Path) -> str:
    try:
        with Image.open(file) as image:
            mode = image.mode
    except Exception as error:  # Pillow's readers raise many kinds for what is not an image
        raise DataError(
            f"{file} is not an image that Pillow can read; mend it or take it out of the folder"
        ) from error
    if mode not in _MODES:
        raise DataError(f"{file} has pixels of mode {mode!r}; expected 8 bits a channel")
    return mode


def write_files(files: Sequence[Path], size: int | None, channels: int, file: BinaryIO) -> None:
    """Decode image files into one ``.npy`` array, (N, H, W, channels), resized if asked for.

    Raises:
        DataError: A file is damaged or has another size than the first.
    """
    write_images(file, _read(files, size, channels), len(files))


def _read(files: Sequence[Path], size: int | None, channels: int) -> Iterator[tuple[str, Images]]:
    for file in files:
        image = read_image(file, channels)
        yield str(file), resize(image[np.newaxis], size)[0] if size else image


def _targets(classes: Classes, names: Sequence[str]) -> Targets:
    counts = [len(files) for files in classes.values()]
    return np.repeat(np.array([names.index(name) for name in classes], dtype=np.int64), counts)
