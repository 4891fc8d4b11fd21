"""Image data sets in a folder of images and a folder of masks, matched by file name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath

import numpy as np
from PIL import Image

from hwnas.deploy.error_line import first_line
from hwnas.errors import DamagedImage, DataError
from hwnas.search.data.decoded_images import (
    EncodedImage,
    EncodedImages,
    EncodedPart,
    decode_parts,
)
from hwnas.search.data.image_cache import ImageCache, Images, cache_key
from hwnas.search.data.image_size import ImageSize, read_image, size_key
from hwnas.search.data.layouts.image_folder import FolderFiles, channels_of, entries, list_version
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.masks import VOID, Masks
from hwnas.search.data.raw_images import RawImages, held_out_parts

__all__ = [
    "CLASSES_FILE",
    "class_names",
    "has_masks",
    "mask_folder_manifest",
    "read_mask_folder",
]

_LAYOUT = "expected images/NAME.jpg and masks/NAME.png, perhaps in train/, val/ and test/"
CLASSES_FILE = "classes.txt"
"""File in the folder of a data set that names the classes."""
_MODES = ("1", "L", "P")

Pairs = Sequence[tuple[str, str]]
"""Path of each image and path of its mask, both in the data set's folder."""


def has_masks(folder: Path) -> bool:
    """Return whether a folder holds images and masks, instead of one folder per class."""
    return any(
        (part / "images").is_dir() and (part / "masks").is_dir()
        for part in (folder, folder / "train")
    )


def mask_folder_manifest(folder: Path) -> DataManifest:
    """Return the manifest of all images, masks and ``classes.txt``, without opening a file.

    Raises:
        DataError: The folders do not have the expected layout, or an image has no mask.
    """
    return _listed(folder)[1]


def _listed(folder: Path) -> tuple[Mapping[str, Pairs], DataManifest]:
    """Return the pairs of image and mask by part, and the manifest of all files."""
    prefixes = {"train": ""}
    if (folder / "train").is_dir():
        held_out = held_out_parts(entries(folder, _LAYOUT)[0]) or {"test": "test"}
        prefixes = {part: f"{name}/" for part, name in {"train": "train", **held_out}.items()}
    states: dict[str, str] = {}
    parts: dict[str, Pairs] = {}
    for part, prefix in prefixes.items():
        parts[part], files = _pairs(folder, prefix)
        states |= files
    if (folder / CLASSES_FILE).exists():
        _, beside = entries(folder, _LAYOUT)
        states[CLASSES_FILE] = beside.get(CLASSES_FILE, "0 0")
    return parts, DataManifest("files", states)


def read_mask_folder(
    folder: Path, size: ImageSize | None, cache: ImageCache, skip_damaged: bool = False
) -> RawImages:
    """Read ``images/`` and ``masks/``, perhaps divided into ``train``, ``val`` and ``test``.

    A mask is a losslessly compressed image file (PNG) with one channel, grey or with a palette,
    whose values are the classes; 255 marks pixels without a class. Its name is that of its image
    except for the extension. ``classes.txt`` may name the classes, one per line.

    Args:
        folder: Folder with ``images`` and ``masks``, or with both in ``train`` and in the parts of
            `held_out_parts`.
        size: Size that images and masks are stretched to, masks by nearest neighbour; None keeps
            their own size, which must be the same for all.
        cache: Cache for the decoded images and masks.
        skip_damaged: Whether to leave out images that cannot be decoded, or whose mask cannot.

    Raises:
        DataError: The folders do not have the expected layout, an image has no mask or a mask no
            image, a file cannot be read, or sizes differ.
        StorageError: The cache cannot be written.
    """
    parts, manifest = _listed(folder)
    states = manifest.entries
    images = ((folder / image, folder / image) for pairs in parts.values() for image, _ in pairs)
    channels = channels_of(images, folder, manifest, cache)
    place = cache_key(folder, "masks", size_key(size), f"{channels}ch")
    encoded = {
        part: EncodedPart(
            partial(_encoded, folder, pairs, states, size, channels),
            list_version((*pair, *map(states.__getitem__, pair)) for pair in pairs),
            len(pairs),
        )
        for part, pairs in parts.items()
    }
    decoded = decode_parts(place, encoded, cache, str(folder), skip_damaged, beside="masks")
    return RawImages.of_parts(
        {part: (decoded.arrays[part], decoded.arrays[f"{part}-masks"]) for part in parts},
        class_names=class_names(folder / CLASSES_FILE),
        manifest=manifest,
        skipped=decoded.skipped,
    )


def _pairs(folder: Path, prefix: str) -> tuple[Pairs, FolderFiles]:
    """Return each image with its mask, and the state of each file."""
    states: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    for kind in ("images", "masks"):
        inside = f"{prefix}{kind}"
        folders, files = entries(folder / inside, _LAYOUT)
        if folders:
            raise DataError(
                f"{folder / inside / folders[0]} is a folder where a file should be; {_LAYOUT}"
            )
        found[kind] = {PurePath(name).stem: f"{inside}/{name}" for name in files}
        states |= {f"{inside}/{name}": state for name, state in files.items()}
    images, masks = found["images"], found["masks"]
    if not images:
        raise DataError(f"{folder / prefix / 'images'} has no images; {_LAYOUT}")
    odd = sorted(images.keys() ^ masks.keys())
    if odd:
        there, missing = ("images", "masks") if odd[0] in images else ("masks", "images")
        raise DataError(
            f"{folder / prefix / there} has {odd[0]!r}, but {folder / prefix / missing} does not; "
            "each image needs a mask of the same name"
        )
    return [(images[stem], masks[stem]) for stem in sorted(images)], states


def _encoded(
    folder: Path, pairs: Pairs, states: FolderFiles, size: ImageSize | None, channels: int
) -> EncodedImages:
    for image, mask in pairs:
        decode = partial(_decode, folder / image, folder / mask, size, channels)
        yield EncodedImage(image, f"{states[image]} {mask} {states[mask]}", decode)


def _decode(image: Path, mask: Path, size: ImageSize | None, channels: int) -> tuple[Images, Masks]:
    pixels, classes = read_image(image, channels, None), _read_mask(mask)
    height, width = pixels.shape[:2]
    if classes.shape != (height, width):
        raise DataError(
            f"{mask} has {classes.shape[0]} x {classes.shape[1]} pixels, but its image {height} x "
            f"{width} (height, width); give each image a mask of the same size"
        )
    if size is None:
        return pixels, classes
    return size.resize(pixels[np.newaxis])[0], size.resize_masks(classes[np.newaxis])[0]


def _read_mask(path: Path) -> Masks:
    try:
        with path.open("rb") as file, Image.open(file) as image:
            mode, kind = image.mode, image.format
            mask = np.array(image) if mode in _MODES else np.zeros((0, 0))
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds of errors for files that are not images
        if isinstance(error, OSError) and error.strerror is not None:
            raise DataError(f"{path} cannot be read ({error.strerror})") from error
        reason = f"the mask {path.name}: {first_line(error).partition(' <')[0]}"
        raise DamagedImage(
            f"{path} is not an image that Pillow can read; repair it or take it out of the folder",
            reason,
        ) from error
    if mode not in _MODES or kind == "JPEG":
        raise DataError(
            f"{path} is a {kind} of mode {mode!r}; a mask is a PNG with one channel whose values "
            f"are the classes, from 0, or {VOID} for no class"
        )
    return mask.astype(np.uint8)


def class_names(path: Path) -> tuple[str, ...] | None:
    """Return the names of the classes in a file, one per line; None if there is no file.

    Raises:
        DataError: The file cannot be read.
    """
    if not path.exists():
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); expected one class per line") from error
    return tuple(line.strip() for line in lines if line.strip())
