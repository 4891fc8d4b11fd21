"""Folders of pictures, which are cut into patches and scaled down to the images of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from hwnas.deploy.bundles.image_file import upright_size
from hwnas.errors import ConfigError, DataError
from hwnas.search.data.decoded_images import (
    EncodedImage,
    EncodedImages,
    EncodedPart,
    decode_parts,
)
from hwnas.search.data.image_cache import ImageCache, Images, cache_key
from hwnas.search.data.image_size import ImageSize, read_image, size_key
from hwnas.search.data.layouts.image_folder import (
    FolderFiles,
    channels_of,
    entries,
    list_version,
)
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.pictures import Pictures, patch_places, scaled_down
from hwnas.search.data.raw_images import RawImages, held_out_parts, main_part

__all__ = ["picture_manifest", "read_pictures"]

_LAYOUT = "expected picture files, or train/ and test/ (and perhaps val/) with picture files"
_SIDE = 32
_KEPT = 8  # decoded pictures; patches of a picture follow one another

Places = list[tuple[int, int]]
"""Top and left of the patches of a picture, in pixels of the picture."""


def picture_manifest(folder: Path) -> DataManifest:
    """Return the manifest of all pictures of a folder, without opening one.

    Raises:
        DataError: The folder does not have the expected layout.
    """
    return _manifest(_parts(folder))


def _manifest(parts: Mapping[str, FolderFiles]) -> DataManifest:
    return DataManifest("files", {k: v for files in parts.values() for k, v in files.items()})


def read_pictures(
    folder: Path,
    size: ImageSize | None,
    cache: ImageCache,
    skip_damaged: bool = False,
    *,
    upscale: int,
) -> RawImages:
    """Read pictures as targets, and the same pictures scaled down as images.

    Each picture is cut to a multiple of ``upscale``, scaled down (`scaled_down`), and divided into
    patches that cover it. The patches of one picture are never divided between splits.

    Args:
        folder: Folder of picture files, or of the folders ``train``, ``test`` and perhaps ``val``.
        size: Height and width of the images, which are patches; 32 pixels if None.
        cache: Cache for the decoded patches.
        skip_damaged: Whether to leave out pictures that cannot be decoded.
        upscale: Number of times that a picture is as large as its image, in each direction.

    Raises:
        DataError: The folder does not have the expected layout, a picture is smaller than a patch,
            or files are damaged.
        StorageError: The cache cannot be written.
    """
    size = size or ImageSize(_SIDE, _SIDE)
    if size.fit != "stretch":
        raise ConfigError(
            f"data.fit is {size.fit!r}, but pictures are cut into patches; leave it out"
        )
    parts = _parts(folder)
    manifest = _manifest(parts)
    files = ((folder / name, folder / name) for name in chain(*parts.values()))
    channels = channels_of(files, folder, manifest, cache)
    places = {
        part: {name: _places(folder / name, size, upscale) for name in names}
        for part, names in parts.items()
    }
    encoded = {
        part: EncodedPart(
            partial(_encoded, folder, parts[part], found, size, channels, upscale),
            list_version(parts[part].items()),
            sum(map(len, found.values())),
        )
        for part, found in places.items()
    }
    place = cache_key(folder, "pictures", size_key(size), f"x{upscale}", f"{channels}ch")
    decoded = decode_parts(place, encoded, cache, str(folder), skip_damaged, beside="pictures")
    arrays = {part: (decoded.arrays[part], decoded.arrays[f"{part}-pictures"]) for part in parts}
    main = main_part(parts)
    groups = np.repeat(np.arange(len(places[main])), [len(each) for each in places[main].values()])
    return RawImages.of_parts(
        arrays,
        manifest=manifest,
        skipped=decoded.skipped,
        groups=groups.astype(np.int64)[decoded.parts[main].kept],
    )


def _parts(folder: Path) -> Mapping[str, FolderFiles]:
    """Return the files by part: ``all``; or ``train``, ``test`` and perhaps ``validation``."""
    folders, files = entries(folder, _LAYOUT)
    if not folders:
        if not files:
            raise DataError(f"{folder} has no pictures; {_LAYOUT}")
        return {"all": files}
    held_out = held_out_parts(folders)
    known = {"train": "train", **held_out}
    others = sorted({*folders} - {*known.values()})
    if files or others or len(known) < 2 or "train" not in folders:
        raise DataError(f"{folder} has {', '.join([*folders, *files][:5])}; {_LAYOUT}")
    return {part: _pictures(folder, f"{name}/") for part, name in known.items()}


def _pictures(folder: Path, prefix: str) -> FolderFiles:
    folders, files = entries(folder / prefix, _LAYOUT)
    if folders or not files:
        raise DataError(f"{folder / prefix} has {'folders' if folders else 'no files'}; {_LAYOUT}")
    return {f"{prefix}{name}": state for name, state in files.items()}


def _places(file: Path, size: ImageSize, upscale: int) -> Places:
    """Return the places of a picture's patches; a single one if the file is damaged."""
    try:
        with Image.open(file) as image:
            whole = upright_size(image)
    except Exception:  # Pillow raises many kinds of errors; decoding reports the damaged files
        return [(0, 0)]
    patch, sides = (size.height, size.width), [side // upscale for side in whole]
    if any(side < least for side, least in zip(sides, patch, strict=True)):
        raise DataError(
            f"{file} has {whole[0]} x {whole[1]} pixels (height, width), but patches need "
            f"{patch[0] * upscale} x {patch[1] * upscale}; lower data.size, or remove it"
        )
    return [(top * upscale, left * upscale) for top, left in patch_places(sides, patch)]


def _encoded(
    folder: Path,
    files: FolderFiles,
    places: Mapping[str, Places],
    size: ImageSize,
    channels: int,
    upscale: int,
) -> EncodedImages:
    read = lru_cache(_KEPT)(partial(_read, channels, upscale))
    for name, state in files.items():
        for place in places[name]:
            cut = partial(_cut, read, folder / name, place, size, upscale)
            yield EncodedImage(name, f"{state} {place[0]} {place[1]}", cut)


def _read(channels: int, upscale: int, file: Path) -> tuple[Images, Pictures]:
    """Return the image and the picture of a file, whole: uint8 (h, w, C) and (H, W, C)."""
    picture = read_image(file, channels, None)
    height, width = (side - side % upscale for side in picture.shape[:2])
    picture = picture[:height, :width]
    return scaled_down(picture, upscale), picture


def _cut(
    read: Callable[[Path], tuple[Images, Pictures]],
    file: Path,
    place: tuple[int, int],
    size: ImageSize,
    upscale: int,
) -> tuple[Images, Pictures]:
    image, picture = read(file)
    top, left = place
    height, width = size.height * upscale, size.width * upscale
    small = np.s_[top // upscale :, left // upscale :]
    return image[small][: size.height, : size.width], picture[top:, left:][:height, :width]
