"""Image data sets in WebDataset shards: tar files of images and of their classes."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
from hwnas.search.data.layouts.mask_folder import CLASSES_FILE, class_names
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.raw_images import PARTS, RawImages, Targets, held_out_parts

__all__ = ["files_by_part", "has_shards", "open_images", "read_shards", "shards_manifest"]

_LAYOUT = (
    "expected shards NAME.tar of samples KEY.jpg and KEY.cls, perhaps with train, val and test in "
    "the names of shards or of their folders"
)
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "tif", "tiff")
_CLASS = "cls"
_KEY = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")  # WebDataset's: up to the first dot of the name
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class _Sample:
    """Sample of a shard.

    Attributes:
        name: Shard and key of the sample.
        image: Content of its image file.
        label: Number of its class.
    """

    name: str
    image: bytes
    label: int


def has_shards(folder: Path) -> bool:
    """Return whether a folder holds tar files, itself or in the folder ``train``."""
    return any(any(part.glob("*.tar")) for part in (folder, folder / "train"))


def shards_manifest(folder: Path) -> DataManifest:
    """Return the manifest of all shards and of ``classes.txt``, without opening a file.

    Raises:
        DataError: The parts of the shards are unclear.
    """
    return _listed(folder)[1]


def read_shards(
    folder: Path, size: ImageSize | None, cache: ImageCache, skip_damaged: bool = False
) -> RawImages:
    """Read images and classes from shards, perhaps divided into ``train``, ``val`` and ``test``.

    A sample consists of consecutive files with the same name up to its first dot: an image, and
    ``KEY.cls`` with the number of its class; other files are ignored. ``classes.txt`` in the folder
    may name the classes, one per line. Images are read as those of folders.

    Args:
        folder: Folder with the shards.
        size: Size that images are brought to; None keeps their own, which must be the same for all.
        cache: Cache for the decoded images and their classes.
        skip_damaged: Whether to leave out images that cannot be decoded.

    Raises:
        DataError: A shard or an image is damaged, a sample lacks its image or class, or sizes
            differ.
        StorageError: The cache cannot be written.
    """
    parts, manifest = _listed(folder)
    images = ((sample.name, io.BytesIO(sample.image)) for sample in _all_samples(folder, parts))
    channels = channels_of(images, folder, manifest, cache)
    place = cache_key(folder, "shards", size_key(size), f"{channels}ch")
    encoded = {
        part: EncodedPart(
            partial(_encoded, folder, shards, size, channels), list_version(shards.items())
        )
        for part, shards in parts.items()
    }
    decoded = decode_parts(place, encoded, cache, str(folder), skip_damaged, beside="classes")
    if empty := [part for part, each in decoded.parts.items() if not each.count]:
        raise DataError(f"the shards {', '.join(parts[empty[0]])} hold no samples; {_LAYOUT}")
    arrays = decoded.arrays
    return RawImages.of_parts(
        {part: (arrays[part], _targets(arrays[f"{part}-classes"])) for part in parts},
        class_names=class_names(folder / CLASSES_FILE),
        manifest=manifest,
        skipped=decoded.skipped,
    )


def open_images(folder: Path, count: int) -> Iterator[io.BytesIO]:
    """Yield the first images of the shards, at most ``count``, as open files.

    Raises:
        DataError: A shard is damaged, or a sample lacks its image or class.
    """
    parts, _ = _listed(folder)
    for sample in itertools.islice(_all_samples(folder, parts), count):
        yield io.BytesIO(sample.image)


def _listed(folder: Path) -> tuple[Mapping[str, FolderFiles], DataManifest]:
    """Return the shards by part, ``all`` or those of `RawImages`, and the manifest of all files."""
    folders, files = entries(folder, _LAYOUT)
    inside = {
        f"{name}/{file}": state
        for name in folders
        if name in PARTS
        for file, state in entries(folder / name, _LAYOUT)[1].items()
    }
    shards = {n: state for n, state in {**files, **inside}.items() if n.endswith(".tar")}
    states = {**shards, **({CLASSES_FILE: files[CLASSES_FILE]} if CLASSES_FILE in files else {})}
    return files_by_part(folder, shards), DataManifest("files", states)


def files_by_part(folder: Path, files: FolderFiles) -> Mapping[str, FolderFiles]:
    """Divide files into the parts that their names, or the names of their folders, contain.

    Returns:
        All files as ``"all"``, or those of the parts of `RawImages.of_parts`.

    Raises:
        DataError: There are parts, but a file belongs to none of them.
    """
    by_name: dict[str, dict[str, str]] = {}
    for name, state in files.items():
        by_name.setdefault(_part(name), {})[name] = state
    held_out = held_out_parts(by_name)
    if "train" not in by_name or not held_out:
        return {"all": files}
    named = {"train": "train", **held_out}
    if others := set(by_name).difference(named.values()):
        other = min(by_name[min(others)])
        raise DataError(
            f"{folder / other} is beside files for {' and '.join(sorted(named.values()))}; put "
            "the name of its part into its own, or take it out of the folder"
        )
    return {part: by_name[name] for part, name in named.items()}


def _part(name: str) -> str:
    """Return the part that a file's path names; an empty string if it names none."""
    words = re.split("[^a-z]+", name.lower())
    return next((part for part in PARTS if part in words), "")


def _encoded(
    folder: Path, shards: FolderFiles, size: ImageSize | None, channels: int
) -> EncodedImages:
    for sample in _samples(folder, shards):
        state = xxhash.xxh3_128_hexdigest(b"%d " % sample.label + sample.image)
        yield EncodedImage(sample.name, state, partial(_decode, sample, size, channels))


def _decode(sample: _Sample, size: ImageSize | None, channels: int) -> tuple[Images, Images]:
    """Return the pixels, and the bytes of the class, so that both are kept in the cache."""
    pixels = read_image(io.BytesIO(sample.image), channels, size)
    return pixels, np.array([sample.label], np.int64).view(np.uint8)


def _targets(rows: Images) -> Targets:
    return np.ascontiguousarray(rows).view(np.int64)[:, 0]


def _all_samples(folder: Path, parts: Mapping[str, FolderFiles]) -> Iterator[_Sample]:
    for shards in parts.values():
        yield from _samples(folder, shards)


def _samples(folder: Path, shards: FolderFiles) -> Iterator[_Sample]:
    for name in shards:
        with _damage_named(folder / name), tarfile.open(folder / name, "r:") as archive:
            files = (member for member in archive if member.isfile())
            for key, members in itertools.groupby(files, lambda member: _split(member.name)[0]):
                content = {
                    suffix: _content(archive, member)
                    for member in members
                    if (suffix := _split(member.name)[1]) in (*_IMAGES, _CLASS)
                }
                if content:
                    yield _sample(f"{name}: {key}", content)
            _check_whole(archive)


def _split(name: str) -> tuple[str, str]:
    """Return key and extension of a file in a shard."""
    found = _KEY.fullmatch(name)
    return (found[1], found[2].lower()) if found else (name, "")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # only folders and links have none
    return file.read()


def _sample(name: str, content: Mapping[str, bytes]) -> _Sample:
    images = [suffix for suffix in content if suffix != _CLASS]
    if len(images) != 1 or _CLASS not in content:
        raise DataError(
            f"sample {name} has {', '.join(sorted(content))}; it needs one image and its class, "
            f"the file KEY.{_CLASS}"
        )
    text = content[_CLASS].decode("utf-8", "replace").strip()
    if not re.fullmatch("[0-9]{1,18}", text):
        raise DataError(f"the class of sample {name} is {text[:20]!r}; expected a number from 0")
    return _Sample(name, content[images[0]], int(text))


def _check_whole(archive: tarfile.TarFile) -> None:
    """Raise if an archive has no end, which tarfile itself accepts."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(_BLOCK_BYTES) != bytes(_BLOCK_BYTES):
        raise tarfile.ReadError("the file ends too early")


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); expected a whole tar file") from error
