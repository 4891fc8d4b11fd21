"""Image data sets in folders, with one folder per class."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
from PIL import Image

from hwnas.deploy.bundles.image_file import is_grey
from hwnas.errors import DataError
from hwnas.search.data.decoded_images import (
    DecodedParts,
    EncodedImage,
    EncodedImages,
    EncodedPart,
    decode_parts,
)
from hwnas.search.data.image_cache import ImageCache, Images, cache_key
from hwnas.search.data.image_size import ImageSize, read_image, size_key
from hwnas.search.data.manifest import DataManifest, file_state
from hwnas.search.data.raw_images import RawImages, Targets, held_out_parts

__all__ = [
    "FolderFiles",
    "FolderListing",
    "channels_of",
    "decode_files",
    "entries",
    "folder_manifest",
    "list_version",
    "read_folder",
]

_LAYOUT = (
    "expected <class>/<image>, or train/<class>/<image> and test/<class>/<image> (and perhaps "
    "val/<class>/<image>)"
)

FolderFiles = Mapping[str, str]
"""State of each file, by its path in a folder with ``/``: see `DataManifest.entries`."""

Classes = Mapping[str, FolderFiles]
"""Image files of each class."""


def folder_manifest(folder: Path) -> DataManifest:
    """Return the manifest of a folder of class folders, without opening an image.

    Raises:
        DataError: The folders do not have the expected layout, or a class is empty.
    """
    return _manifest(_parts(folder))


def _manifest(parts: Mapping[str, Classes]) -> DataManifest:
    found = [files for classes in parts.values() for files in classes.values()]
    return DataManifest("files", {name: state for files in found for name, state in files.items()})


def read_folder(
    folder: Path, size: ImageSize | None, cache: ImageCache, skip_damaged: bool = False
) -> RawImages:
    """Read images from one folder per class, perhaps divided into ``train``, ``val`` and ``test``.

    Images are read as in deployment: grey if all are grey, otherwise red, green and blue, without
    transparency. Names that begin with a dot are left out. Decoded images are cached; if some files
    change, only these are decoded again.

    Args:
        folder: Folder with the class folders, or with ``train`` and the parts of `held_out_parts`.
        size: Size that images are brought to; None keeps their own, which must be the same for all.
        cache: Cache for the decoded images.
        skip_damaged: Whether to leave out images that cannot be decoded.

    Raises:
        DataError: The folders do not have the expected layout, a class is empty, files are damaged
            or not images, or sizes differ.
        StorageError: The cache cannot be written.
    """
    parts = _parts(folder)
    manifest = _manifest(parts)
    files = {
        part: {name: state for each in classes.values() for name, state in each.items()}
        for part, classes in parts.items()
    }
    names = tuple(parts.get("train", parts.get("all", ())))
    targets = {part: _targets(classes, names) for part, classes in parts.items()}
    decoded = decode_files(folder, files, manifest, size, cache, skip_damaged)
    return RawImages.of_parts(
        {part: (decoded.arrays[part], targets[part][decoded.parts[part].kept]) for part in parts},
        class_names=names,
        manifest=manifest,
        skipped=decoded.skipped,
    )


def decode_files(
    folder: Path,
    parts: Mapping[str, FolderFiles],
    manifest: DataManifest,
    size: ImageSize | None,
    cache: ImageCache,
    skip_damaged: bool,
) -> DecodedParts:
    """Decode the image files of a folder, all with the same number of channels.

    Args:
        folder: Folder of the files.
        parts: Files by part.
        manifest: Manifest of the data set.
        size: Size that images are brought to; None for their own.
        cache: Cache for the decoded images.
        skip_damaged: Whether to leave out images that cannot be decoded.

    Raises:
        DataError: Files are damaged or not images, or sizes differ.
        StorageError: The cache cannot be written.
    """
    images = ((folder / name, folder / name) for name in chain(*parts.values()))
    channels = channels_of(images, folder, manifest, cache)
    encoded = {
        part: EncodedPart(
            partial(_encoded, folder, files, size, channels),
            list_version(files.items()),
            len(files),
        )
        for part, files in parts.items()
    }
    place = cache_key(folder, size_key(size), f"{channels}ch")
    return decode_parts(place, encoded, cache, str(folder), skip_damaged)


def _encoded(
    folder: Path, files: FolderFiles, size: ImageSize | None, channels: int
) -> EncodedImages:
    for name, state in files.items():
        yield EncodedImage(name, state, partial(_decode, folder / name, size, channels))


def _decode(file: Path, size: ImageSize | None, channels: int) -> tuple[Images]:
    return (read_image(file, channels, size),)


def list_version(files: Iterable[Sequence[str]]) -> str:
    """Return a hash of a list of files and their states, in order."""
    return hashlib.sha256(json.dumps([*files]).encode()).hexdigest()[:12]


def _parts(folder: Path) -> dict[str, Classes]:
    """Return the files by part and by class.

    The parts are ``all``; or ``train``, ``test`` and perhaps ``validation``.
    """
    found = set(_folders(folder, ""))
    held_out = held_out_parts(found)
    if "train" not in found or not held_out:
        return {"all": _classes(folder, "")}
    known = ["train", *held_out.values()]
    if others := found.difference(known):
        raise DataError(
            f"{folder} has {min(others)!r} beside {' and '.join(sorted(known))}; {_LAYOUT}"
        )
    train = _classes(folder, "train/")
    parts = {"train": train}
    for part, name in held_out.items():
        parts[part] = _classes(folder, f"{name}/")
        if new := sorted(set(parts[part]) - set(train)):
            raise DataError(
                f"{folder}/{name} has a class {new[0]!r} that {folder}/train does not have"
            )
    return parts


def _classes(folder: Path, prefix: str) -> Classes:
    classes = {name: _images(folder, f"{prefix}{name}/") for name in _folders(folder, prefix)}
    if not classes:
        raise DataError(f"{folder / prefix} has no class folders; {_LAYOUT}")
    return classes


def _folders(folder: Path, prefix: str) -> list[str]:
    folders, files = entries(folder / prefix, _LAYOUT)
    if files:
        raise DataError(f"{folder / prefix / min(files)} lies beside the class folders; {_LAYOUT}")
    return folders


def _images(folder: Path, prefix: str) -> FolderFiles:
    folders, files = entries(folder / prefix, _LAYOUT)
    if folders:
        raise DataError(
            f"{folder / prefix / folders[0]} is a folder where an image should be; {_LAYOUT}"
        )
    if not files:
        raise DataError(f"{folder / prefix} has no images; {_LAYOUT}")
    return {f"{prefix}{name}": state for name, state in files.items()}


def entries(folder: Path, layout: str) -> tuple[list[str], FolderFiles]:
    """List the content of a folder, sorted, without names that begin with a dot.

    Returns:
        Names of folders, and the state of each file by its name.

    Raises:
        DataError: The folder does not exist or cannot be read; the message ends with ``layout``.
    """
    folders, files = [], {}
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                else:
                    files[entry.name] = file_state(entry)
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); {layout}") from error
    return sorted(folders), dict(sorted(files.items()))


class FolderListing:
    """Files in a folder and in the folders within it, each of which is listed once, when needed.

    Args:
        folder: Folder of the data set.
        layout: Text about the expected layout, for messages.
    """

    def __init__(self, folder: Path, layout: str) -> None:
        self._folder, self._layout = folder, layout
        self._listed: dict[PurePosixPath, FolderFiles] = {}

    def state(self, file: PurePosixPath) -> str | None:
        """Return the state of a file by its path in the folder; None if there is no such file.

        Raises:
            DataError: The folder of the file cannot be read.
        """
        if file.parent not in self._listed:
            self._listed[file.parent] = entries(self._folder / file.parent, self._layout)[1]
        return self._listed[file.parent].get(file.name)


def channels_of(
    images: Iterable[tuple[object, Path | BinaryIO]],
    folder: Path,
    manifest: DataManifest,
    cache: ImageCache,
) -> int:
    """Return 1 if all images of a folder are grey, otherwise 3; files without image are ignored.

    No image is opened if the cache knows the answer, nor after the first one in colour.

    Args:
        images: Name, for messages, and file of each image.
        folder: Folder of the data set.
        manifest: Manifest of the data set.
        cache: Cache that keeps the answer.

    Raises:
        DataError: The pixels of a file have no defined range.
        StorageError: The cache cannot be written.
    """
    return cache.remembered(
        cache_key(folder, "channels"),
        manifest.fingerprint,
        lambda: 1 if all(_is_grey(name, file) for name, file in images) else 3,
    )


def _is_grey(name: object, file: Path | BinaryIO) -> bool:
    try:
        image = Image.open(file)
    except Exception:  # Pillow raises many kinds of errors; decoding reports the damaged files
        return True
    with image:
        try:
            return is_grey(image)
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None


def _targets(classes: Classes, names: Sequence[str]) -> Targets:
    counts = [len(files) for files in classes.values()]
    return np.repeat(np.array([names.index(name) for name in classes], dtype=np.int64), counts)
