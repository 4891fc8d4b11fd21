"""Image sets in an ``.npz`` file: plain arrays, or JPEG files laid end to end."""

from __future__ import annotations

import contextlib
import io
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from hwnas.errors import DataError, HwnasError
from hwnas.search.image_cache import ImageCache, Images, source_key, write_images
from hwnas.search.raw_images import RawImages, check_names

__all__ = ["read_npz"]


def read_npz(path: Path, cache: ImageCache) -> RawImages:
    """Read a set of images with classes or masks.

    Either ``x_train``, ``y_train``, ``x_test``, ``y_test``; or ``train_jpeg`` (the bytes of all
    files, one after the other), ``train_offsets`` (where each begins, and the end), ``y_train`` and
    the same for ``test`` (or ``val``). ``class_names`` is optional in both. Masks are ``y_train``
    and ``y_test`` of (N, H, W).

    Args:
        path: The file. Nothing in it is ever unpickled.
        cache: Where JPEG files are decoded to, and arrays that are larger than ``map_above``.

    Raises:
        DataError: The file or an image in it is damaged, or an array is missing or wrong.
        StorageError: The cache cannot be written.
    """
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        images = _decoded if "train_jpeg" in names else _plain
        arrays = images(archive, names, path, cache)
        if "class_names" in names:
            arrays["class_names"] = _read(archive, "class_names")
        return RawImages.of(arrays, str(path))


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except HwnasError:
        raise
    # All that zipfile, zlib and NumPy raise on damaged, encrypted or pickled content.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); expected a whole .npz file of plain arrays"
        ) from error


def _read(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as stream:
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _plain(
    archive: zipfile.ZipFile, names: set[str], path: Path, cache: ImageCache
) -> dict[str, Any]:
    check_names(("x_train", "y_train", "x_test", "y_test"), names, str(path))
    large = ["x_train", "x_test"]
    large += [name for name in ("y_train", "y_test") if _is_of_masks(archive, name)]
    arrays: dict[str, Any] = {
        name: _read(archive, name) for name in ("y_train", "y_test") if name not in large
    }
    if cache.maps(sum(archive.getinfo(f"{name}.npy").file_size for name in large)):
        copies = {name: partial(_copy, archive, name) for name in large}
        return arrays | cache.arrays(source_key(path), copies)
    return arrays | {name: _read(archive, name) for name in large}


def _is_of_masks(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether an array is as large as images, and could be memory-mapped as they are."""
    with archive.open(f"{name}.npy") as stream:
        shape, dtype = _header(stream)
    return len(shape) > 2 and dtype == np.uint8


def _copy(archive: zipfile.ZipFile, name: str, file: BinaryIO) -> None:
    with archive.open(f"{name}.npy") as stream:
        shutil.copyfileobj(stream, file, 2**20)


def _decoded(
    archive: zipfile.ZipFile, names: set[str], path: Path, cache: ImageCache
) -> dict[str, Any]:
    held_out = "test" if "test_jpeg" in names else "val"
    parts = ("train", held_out)
    needed = (f"{part}_{suffix}" for part in parts for suffix in ("jpeg", "offsets"))
    check_names((*needed, "y_train", f"y_{held_out}"), names, str(path))
    decoders = {part: partial(_decode, archive, part, f"{path}: {part}_jpeg") for part in parts}
    images = cache.arrays(source_key(path), decoders)
    return {
        "x_train": images["train"],
        "y_train": _read(archive, "y_train"),
        "x_test": images[held_out],
        "y_test": _read(archive, f"y_{held_out}"),
    }


def _decode(archive: zipfile.ZipFile, part: str, what: str, file: BinaryIO) -> None:
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
        lengths = np.diff(offsets.astype(np.int64)).tolist()
        images = (
            (name, _jpeg(stream.read(length), name))
            for name, length in ((f"{what}: image {i}", n) for i, n in enumerate(lengths))
        )
        write_images(file, images, len(lengths))


def _skip_header(stream: IO[bytes], what: str) -> int:
    """Go to the first byte of a one-dimensional uint8 array; its length."""
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


def _jpeg(data: bytes, what: str) -> Images:
    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(image if image.mode == "L" else image.convert("RGB"))
    except Exception as error:  # Pillow's decoders raise many kinds for damaged data
        reason = str(error).splitlines()[0].partition(" <")[0] if str(error) else "no reason given"
        raise DataError(f"{what} is damaged ({reason}); make the file again") from error
    return pixels.reshape(*pixels.shape[:2], -1)
