"""Image data sets in an ``.npz`` file: plain arrays, or concatenated JPEG files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash
from PIL import Image

from hwnas.atomic import replacing
from hwnas.deploy.bundles.image_file import is_grey, read_pixels
from hwnas.deploy.error_line import first_line
from hwnas.errors import DamagedImage, DataError, HwnasError
from hwnas.search.data.decoded_images import (
    DecodedPart,
    EncodedImage,
    EncodedImages,
    EncodedPart,
    decode_parts,
)
from hwnas.search.data.image_cache import ImageCache, Images, cache_key
from hwnas.search.data.manifest import DataManifest, cached_hashes
from hwnas.search.data.raw_images import RawImages, check_names, held_out_parts

__all__ = ["archive_manifest", "holds_arrays", "read_npz", "write_npz"]

_BLOCK_BYTES = 2**20
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError
)  # fmt: skip
"""Errors that zipfile, zlib and NumPy raise on damaged, encrypted or pickled content."""
_PARTS = ("train", "test", "val")
_ARRAYS = {"class_names", "groups"} | {
    f"{prefix}{part}{suffix}"
    for part in _PARTS
    for prefix, suffix in (("x_", ""), ("y_", ""), ("", "_jpeg"), ("", "_offsets"))
}
"""Names of all arrays that are ever read from an archive."""


def archive_manifest(path: Path) -> DataManifest:
    """Return the manifest of an archive, with a hash of each array as it is stored.

    Arrays are not decompressed. The hashes are cached together with the state of the file (see
    `cached_hashes`). Arrays that `read_npz` does not read are left out.

    Raises:
        DataError: The file is damaged.
    """
    with _damage_named(path):
        return DataManifest("arrays", cached_hashes(path, "arrays of an archive", _hashes(path)))


def _hashes(path: Path) -> Callable[[], dict[str, str]]:
    def compute() -> dict[str, str]:
        found = {}
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name in _ARRAYS:
                    found[name] = _member_hash(file, info)
        return found

    return compute


def _member_hash(file: BinaryIO, info: zipfile.ZipInfo) -> str:
    """Return a hash of one member of an archive: compression, size, and bytes as stored."""
    found = xxhash.xxh3_128(f"{info.compress_type} {info.file_size}".encode())
    file.seek(info.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", _exactly(file, 4))
    file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
    left = info.compress_size
    while left:
        block = _exactly(file, min(left, _BLOCK_BYTES))
        found.update(block)
        left -= len(block)
    return found.hexdigest()


def _exactly(file: BinaryIO, size: int) -> bytes:
    block = file.read(size)
    if len(block) < size:
        raise EOFError("the file ends too early")
    return block


def read_npz(path: Path, cache: ImageCache, skip_damaged: bool = False) -> RawImages:
    """Read a data set of images with classes, values or masks.

    The archive holds either ``x_train``, ``y_train``, ``x_test`` and ``y_test``; or ``train_jpeg``
    (the concatenated bytes of all files), ``train_offsets`` (the start of each file, and the end),
    ``y_train``, and the same for ``test``. Arrays of a part ``val`` are for validation or, if there
    is no part ``test``, for testing. ``class_names`` and ``groups`` are optional in both
    cases; see `RawImages.of`, which also tells classes, values and masks apart.

    Args:
        path: Path of the file. Nothing in it is ever unpickled.
        cache: Cache for decoded JPEG files, and for arrays that are larger than ``map_above``.
        skip_damaged: Whether to leave out JPEG files that cannot be decoded.

    Raises:
        DataError: The file or an image in it is damaged, or an array is missing or wrong.
        StorageError: The cache cannot be written.
    """
    manifest = archive_manifest(path)
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        skipped: tuple[str, ...] = ()
        if "train_jpeg" in names:
            arrays, skipped = _decoded(archive, names, path, cache, manifest, skip_damaged)
        else:
            arrays = _plain(archive, names, path, cache, manifest)
        if "class_names" in names:
            arrays["class_names"] = _read(archive, "class_names")
        return replace(RawImages.of(arrays, str(path)), manifest=manifest, skipped=skipped)


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as an archive for `read_npz`; an archive with the same arrays is left as it is.

    Args:
        path: File to write.
        arrays: Arrays by name.

    Raises:
        StorageError: The file cannot be written.
    """
    if path.exists() and holds_arrays(path, arrays):
        return
    with replacing(path) as temporary, temporary.open("wb") as file:
        save: Callable[..., None] = np.savez  # its types take any name for `allow_pickle`
        save(file, **arrays)


def holds_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether an archive has exactly these arrays; False if it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return sorted(archive) == sorted(arrays) and all(
                np.array_equal(archive[name], array) for name, array in arrays.items()
            )
    except _DAMAGE:
        return False


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except HwnasError:
        raise
    except _DAMAGE as error:
        raise DataError(
            f"{path} cannot be read ({error}); expected a whole .npz file of plain arrays"
        ) from error


def _read(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as stream:
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _plain(
    archive: zipfile.ZipFile,
    names: set[str],
    path: Path,
    cache: ImageCache,
    manifest: DataManifest,
) -> dict[str, Any]:
    parts = _parts(names, "x_{}")
    check_names([f"{what}_{part}" for part in parts.values() for what in "xy"], names, str(path))
    large = [f"x_{part}" for part in parts.values()]
    labels = [f"y_{part}" for part in parts.values()]
    large += [name for name in labels if _is_of_masks(archive, name)]
    arrays: dict[str, Any] = {name: _read(archive, name) for name in labels if name not in large}
    if cache.maps(sum(archive.getinfo(f"{name}.npy").file_size for name in large)):
        copies = {name: partial(_copy, archive, name) for name in large}
        arrays |= cache.arrays(cache_key(path, manifest.fingerprint), copies)
    else:
        arrays |= {name: _read(archive, name) for name in large}
    found = {
        f"{what}_{to}": arrays[f"{what}_{part}"] for to, part in parts.items() for what in "xy"
    }
    return found | ({"groups": _read(archive, "groups")} if "groups" in names else {})


def _parts(names: Collection[str], pattern: str) -> dict[str, str]:
    """Return the names of an archive's parts, by their names in `RawImages.of`.

    Args:
        names: Names of all arrays.
        pattern: Name of the images of a part, with ``{}`` in place of the part.
    """
    there = [part for part in _PARTS if pattern.format(part) in names]
    held_out = held_out_parts(there) or {"test": "test"}
    roles = {"test": "test", "validation": "val"}
    return {"train": "train"} | {roles[role]: part for role, part in held_out.items()}


def _is_of_masks(archive: zipfile.ZipFile, name: str) -> bool:
    """Return whether an array holds uint8 masks, which can be memory-mapped like images."""
    with archive.open(f"{name}.npy") as stream:
        shape, dtype = _header(stream)
    return len(shape) > 2 and dtype == np.uint8


def _copy(archive: zipfile.ZipFile, name: str, file: BinaryIO) -> None:
    with archive.open(f"{name}.npy") as stream:
        shutil.copyfileobj(stream, file, 2**20)


def _decoded(
    archive: zipfile.ZipFile,
    names: set[str],
    path: Path,
    cache: ImageCache,
    manifest: DataManifest,
    skip_damaged: bool,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arrays of `RawImages.of`, and the names of damaged images that were left out."""
    named = _parts(names, "{}_jpeg")
    parts = named.values()
    needed = (f"{part}_{suffix}" for part in parts for suffix in ("jpeg", "offsets"))
    check_names((*needed, *(f"y_{part}" for part in parts)), names, str(path))
    encoded = {
        part: EncodedPart(
            partial(_encoded, archive, part, f"{path}: {part}_jpeg"), manifest.fingerprint
        )
        for part in parts
    }
    decoded = decode_parts(cache_key(path, "jpeg"), encoded, cache, str(path), skip_damaged)
    arrays: dict[str, Any] = {}
    for name, part in named.items():
        arrays[f"x_{name}"] = decoded.arrays[part]
        arrays[f"y_{name}"] = _of_kept(_read(archive, f"y_{part}"), decoded.parts[part])
    if "groups" in names:
        arrays["groups"] = _of_kept(_read(archive, "groups"), decoded.parts[named["train"]])
    return arrays, decoded.skipped


def _of_kept(targets: npt.NDArray[Any], part: DecodedPart) -> npt.NDArray[Any]:
    """Return the targets of the kept images; targets of a wrong number are returned unchanged."""
    return targets[part.kept] if part.damaged and len(targets) == part.count else targets


def _encoded(archive: zipfile.ZipFile, part: str, what: str) -> EncodedImages:
    offsets = _read(archive, f"{part}_offsets")
    with archive.open(f"{part}_jpeg.npy") as stream:
        size = _skip_header(stream, what)
        ordered = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
        if not (
            ordered
            and offsets[0] == 0
            and offsets[-1] == size
            and (offsets[1:] > offsets[:-1]).all()
        ):
            raise DataError(
                f"{what}: {part}_offsets do not fit; expected rising integers from 0 to the number "
                f"of bytes, {size}"
            )
        for number, length in enumerate(np.diff(offsets.astype(np.int64)).tolist()):
            data = stream.read(length)
            state = xxhash.xxh3_128_hexdigest(data)
            yield EncodedImage(f"{part}_jpeg: image {number}", state, partial(_jpeg, data))


def _skip_header(stream: IO[bytes], what: str) -> int:
    """Skip the header of a one-dimensional uint8 array and return the length of the array."""
    shape, dtype = _header(stream)
    if len(shape) != 1 or dtype != np.uint8:
        raise DataError(f"{what} is {dtype} with shape {shape}; expected uint8 bytes, (N,)")
    return shape[0]


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(stream)
    return shape, dtype


def _jpeg(data: bytes) -> tuple[Images]:
    try:
        with Image.open(io.BytesIO(data)) as image:
            channels = 1 if is_grey(image) else 3
    except Exception as error:  # Pillow raises many kinds of errors on damaged data
        raise DamagedImage("no image", first_line(error).partition(" <")[0]) from error
    return (read_pixels(io.BytesIO(data), channels),)
