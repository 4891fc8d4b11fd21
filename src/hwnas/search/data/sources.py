"""Sources of image data: scikit-learn's digits, a file, a folder, or a user's function."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hwnas.errors import ConfigError, DataError
from hwnas.plugin import closest, resolve
from hwnas.search.data.image_archive import archive_manifest, read_npz
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_folder import folder_manifest, read_folder
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.mask_folder import has_masks, mask_folder_manifest, read_mask_folder
from hwnas.search.data.raw_images import RawImages

__all__ = ["read_source", "source_manifest"]

_SOURCES = ("digits", "npz:FILE", "folder:PATH")


def source_manifest(source: str, base: Path) -> DataManifest | None:
    """Return the manifest of a source, without decoding an image.

    Args:
        source: Source as in `read_source`.
        base: Folder that relative paths start from.

    Returns:
        The same manifest that loading gives; None for a function, since it would have to be run.

    Raises:
        ConfigError: The source is unknown, or an environment variable is not set.
        DataError: Files are missing, or folders do not have the expected layout.
    """
    if source == "digits":
        return _digits().content
    kind, colon, path = source.partition(":")
    if kind == "npz" and colon:
        return archive_manifest(_locate(source, path, base))
    if kind == "folder" and colon:
        folder = _locate(source, path, base)
        return (mask_folder_manifest if has_masks(folder) else folder_manifest)(folder)
    if colon:
        return None
    raise _unknown(source)


def read_source(
    source: str, base: Path, size: int | None, cache: ImageCache, skip_damaged: bool = False
) -> object:
    """Read the data that a recipe's ``data.source`` names.

    Args:
        source: ``"digits"``, ``"npz:FILE"``, ``"folder:PATH"`` or ``"package.module:function"``.
            ``$VARIABLES`` in a path are replaced by their values in the environment.
        base: Folder that relative paths start from.
        size: Side in pixels that the images of a folder are resized to.
        cache: Cache for decoded and memory-mapped arrays.
        skip_damaged: Whether to leave out image files that cannot be decoded.

    Returns:
        `RawImages`, or the result of a user's function if that is not a mapping of arrays.

    Raises:
        ConfigError: The source is unknown, or an environment variable is not set.
        DataError: The images or targets are missing or damaged.
        StorageError: The cache cannot be written.
    """
    if source == "digits":
        return _digits()
    kind, colon, path = source.partition(":")
    if kind == "npz" and colon:
        return read_npz(_locate(source, path, base), cache, skip_damaged)
    if kind == "folder" and colon:
        folder = _locate(source, path, base)
        read = read_mask_folder if has_masks(folder) else read_folder
        return read(folder, size, cache, skip_damaged)
    if colon:
        return _call(source)
    raise _unknown(source)


def _unknown(source: str) -> ConfigError:
    return ConfigError(
        f'unknown data.source {source!r}; {closest(source, _SOURCES)}; or "package.module:function"'
    )


def _locate(source: str, path: str, base: Path) -> Path:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise ConfigError(
                f"data.source is {source!r}, but ${name} is not set; export {name}=..."
            )
        return os.environ[name]

    if not path:
        raise ConfigError(f"data.source is {source!r}; expected a path after the colon")
    found = base / Path(re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, path)).expanduser()
    wanted, there = (
        ("file", found.is_file()) if source.startswith("npz") else ("folder", found.is_dir())
    )
    if not there:
        variables = re.findall(r"\$\{?(\w+)", path)
        hint = f"is ${variables[0]} right?" if variables else f"relative paths start at {base}"
        raise DataError(f"data.source is {source!r}, but there is no {wanted} {found}; {hint}")
    return found


def _digits() -> RawImages:
    """Return 1,797 images of handwritten digits, 8 x 8 grey pixels, classes 0 to 9."""
    # Imported here, since it takes a second and nothing else in this module needs it.
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    return RawImages(images, digits.target.astype(np.int64), tuple("0123456789"))


def _call(source: str) -> object:
    function: object = resolve("data.source", source, {})
    if not callable(function):
        raise ConfigError(f"data.source {source!r} is a {type(function).__name__}, not a function")
    try:
        made = function()
    except Exception as error:  # a user's function may raise any error; report which
        raise DataError(
            f"data.source {source!r} failed ({type(error).__name__}: {error})"
        ) from error
    return RawImages.of(made, source, values_allowed=True) if isinstance(made, Mapping) else made
