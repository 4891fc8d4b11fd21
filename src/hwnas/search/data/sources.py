"""Sources of image data: scikit-learn's digits, a file, a folder, or a user's function."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from hwnas.errors import ConfigError, DataError
from hwnas.plugin import closest
from hwnas.registry import Plugin, Registry
from hwnas.search.data.image_archive import archive_manifest, read_npz
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.layouts.coco_folder import coco_manifest, has_coco, read_coco
from hwnas.search.data.layouts.image_folder import folder_manifest, read_folder
from hwnas.search.data.layouts.image_records import has_records, read_records, records_manifest
from hwnas.search.data.layouts.image_shards import has_shards, read_shards, shards_manifest
from hwnas.search.data.layouts.image_table import has_table, read_table, table_manifest
from hwnas.search.data.layouts.mask_folder import has_masks, mask_folder_manifest, read_mask_folder
from hwnas.search.data.layouts.picture_folder import picture_manifest, read_pictures
from hwnas.search.data.layouts.text_files import read_text, text_manifest
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.raw_images import RawImages

__all__ = ["PLUGINS", "SOURCES", "DataSource", "read_source", "source_manifest"]


Place = Literal["file", "folder", "file or folder"]


@dataclass(frozen=True)
class DataSource:
    """Reader of one kind of image data, which ``data.source`` names as ``"KIND:PATH"``.

    Attributes:
        manifest: Function that returns the manifest of a path without decoding an image.
        read: Function that returns the data of a path, given the size that images are brought to
            or None, a cache for arrays, and whether to leave out damaged images. The result is a
            `RawImages` or an `hwnas.search.ImageData`.
        place: What the path has to be; None if the source has no path.
    """

    manifest: Callable[[Path], DataManifest]
    read: Callable[[Path, ImageSize | None, ImageCache, bool], object]
    place: Place | None


SOURCES: Registry[DataSource] = Registry("data source", __package__)
"""Sources by kind, the part of ``data.source`` before the colon."""


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
    named = _named(source, base)
    return None if named is None else named[0].manifest(named[1])


def read_source(
    source: str,
    base: Path,
    size: ImageSize | None,
    cache: ImageCache,
    skip_damaged: bool = False,
) -> object:
    """Read the data that a recipe's ``data.source`` names.

    Args:
        source: ``"digits"``, ``"npz:FILE"``, ``"folder:PATH"``, ``"upscale2:PATH"``,
            ``"text:PATH"`` or ``"package.module:function"``. ``$VARIABLES`` in a path are replaced
            by their values in the environment.
        base: Folder that relative paths start from.
        size: Size that the images of a folder are brought to.
        cache: Cache for decoded and memory-mapped arrays.
        skip_damaged: Whether to leave out image files that cannot be decoded.

    Returns:
        `RawImages`, or the result of a user's function if that is not a mapping of arrays.

    Raises:
        ConfigError: The source is unknown, or an environment variable is not set.
        DataError: The images or targets are missing or damaged.
        StorageError: The cache cannot be written.
    """
    named = _named(source, base)
    if named is None:
        return _call(source)
    return named[0].read(named[1], size, cache, skip_damaged)


def _named(source: str, base: Path) -> tuple[DataSource, Path] | None:
    """Return a source and its path; None for a user's function."""
    kind, colon, path = source.partition(":")
    if kind not in SOURCES:
        if colon:
            return None
        raise _unknown(source)
    found = SOURCES[kind]
    if bool(colon) != (found.place is not None):
        raise _unknown(source)
    return found, base if found.place is None else _locate(source, path, base, found.place)


def _unknown(source: str) -> ConfigError:
    paths = {None: "", "file": ":FILE", "folder": ":PATH", "file or folder": ":PATH"}
    forms = [f"{name}{paths[SOURCES[name].place]}" for name in SOURCES]
    return ConfigError(
        f'unknown data.source {source!r}; {closest(source, forms)}; or "package.module:function"'
    )


def _locate(source: str, path: str, base: Path, place: Place) -> Path:
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
    there = {"file": found.is_file, "folder": found.is_dir, "file or folder": found.exists}
    if not there[place]():
        variables = re.findall(r"\$\{?(\w+)", path)
        hint = f"is ${variables[0]} right?" if variables else f"relative paths start at {base}"
        raise DataError(f"data.source is {source!r}, but there is no {place} {found}; {hint}")
    return found


def _digits() -> RawImages:
    """Return 1,797 images of handwritten digits, 8 x 8 grey pixels, classes 0 to 9."""
    # Imported here, since it takes a second and nothing else in this module needs it.
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    return RawImages(images, digits.target.astype(np.int64), tuple("0123456789"))


@dataclass(frozen=True)
class _Layout:
    """Layout of a folder of images.

    Attributes:
        fits: Function that returns whether a folder has this layout.
        manifest: Function that returns the manifest; see `DataSource`.
        read: Function that returns the data; see `DataSource`.
    """

    fits: Callable[[Path], bool]
    manifest: Callable[[Path], DataManifest]
    read: Callable[[Path, ImageSize | None, ImageCache, bool], RawImages]


_LAYOUTS = (
    _Layout(has_masks, mask_folder_manifest, read_mask_folder),
    _Layout(has_coco, coco_manifest, read_coco),
    _Layout(has_shards, shards_manifest, read_shards),
    _Layout(has_records, records_manifest, read_records),
    _Layout(has_table, table_manifest, read_table),
    _Layout(Path.is_dir, folder_manifest, read_folder),
)
"""Layouts of a folder; the first one that fits is read."""


def _layout(folder: Path) -> _Layout:
    return next(layout for layout in _LAYOUTS if layout.fits(folder))


def _call(source: str) -> object:
    function: object = SOURCES.find(source, "data.source")
    if not callable(function):
        raise ConfigError(f"data.source {source!r} is a {type(function).__name__}, not a function")
    try:
        made = function()
    except Exception as error:  # a user's function may raise any error; report which
        raise DataError(
            f"data.source {source!r} failed ({type(error).__name__}: {error})"
        ) from error
    return RawImages.of(made, source, floats_are_values=True) if isinstance(made, Mapping) else made


PLUGINS = (
    Plugin(
        "data source",
        "digits",
        DataSource(lambda path: _digits().content, lambda path, *options: _digits(), None),
        "1,797 handwritten digits of scikit-learn, 8 x 8 pixels",
    ),
    Plugin(
        "data source",
        "npz",
        DataSource(
            archive_manifest,
            lambda path, size, cache, skip_damaged: read_npz(path, cache, skip_damaged),
            "file",
        ),
        "Arrays or encoded images in an .npz file",
    ),
    Plugin(
        "data source",
        "folder",
        DataSource(
            lambda folder: _layout(folder).manifest(folder),
            lambda folder, *how: _layout(folder).read(folder, *how),
            "folder",
        ),
        "Folder with a subfolder for each class, images and masks, boxes in COCO's format, images "
        "and a table, WebDataset shards, or Parquet and Arrow files",
    ),
    *(
        Plugin(
            "data source",
            f"upscale{factor}",
            DataSource(picture_manifest, partial(read_pictures, upscale=factor), "folder"),
            f"Folder of pictures as targets; images are their patches at 1/{factor} of the size",
        )
        for factor in (2, 3, 4)
    ),
    Plugin(
        "data source",
        "text",
        DataSource(text_manifest, read_text, "file or folder"),
        "Text files, of whose bytes each is predicted from those before it",
    ),
)
