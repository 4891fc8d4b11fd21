"""Image sets as folders of images and of masks, matched by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image

from hwnas.errors import DataError
from hwnas.search.image_cache import ImageCache, source_key, write_images
from hwnas.search.image_folder import channels_of, entries, write_files
from hwnas.search.masks import VOID, Masks, resize_masks
from hwnas.search.raw_images import RawImages

__all__ = ["has_masks", "read_mask_folder"]

_LAYOUT = "expected images/NAME.jpg and masks/NAME.png, perhaps in train/ and test/"
_CLASSES = "classes.txt"
_MODES = ("1", "L", "P")


def has_masks(folder: Path) -> bool:
    """Whether a folder holds images and masks, not a folder a class."""
    return any(
        (part / "images").is_dir() and (part / "masks").is_dir()
        for part in (folder, folder / "train")
    )


def read_mask_folder(folder: Path, size: int | None, cache: ImageCache) -> RawImages:
    """Read ``images/`` and ``masks/``, divided by the user (``train``, ``test``) or not.

    A mask is an image file without loss (PNG) and with one channel, grey or with a palette, whose
    numbers are the classes; 255 marks pixels without one. It has the name of its image but for the
    ending. ``classes.txt`` may name the classes, one a line.

    Args:
        folder: Holds ``images`` and ``masks``, or ``train`` and ``test`` with these.
        size: Side in pixels that both are resized to, without keeping their proportions, masks by
            nearest neighbour; None keeps their own size, which must be one for all.
        cache: Where the decoded images and masks are kept.

    Raises:
        DataError: The folders are laid out otherwise, an image has no mask or the other way round,
            a file cannot be read, or sizes differ.
        StorageError: The cache cannot be written.
    """
    divided = (folder / "train").is_dir()
    parts = {
        name: _pairs(folder / name if divided else folder)
        for name in (("train", "test") if divided else ("train",))
    }
    every_file = [file for pairs in parts.values() for pair in pairs for file in pair]
    channels = channels_of([image for pairs in parts.values() for image, _ in pairs])
    writers = {}
    for name, pairs in parts.items():
        writers[name] = partial(write_files, [image for image, _ in pairs], size, channels)
        writers[f"{name}-masks"] = partial(_write_masks, pairs, size)
    kept = cache.arrays(f"{source_key(folder, every_file)}-masks-{size or 'own'}", writers)
    names = _class_names(folder / _CLASSES)
    test = (kept["test"], kept["test-masks"]) if divided else None
    return RawImages(kept["train"], kept["train-masks"], names, test)


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Each image with its mask."""
    images, masks = (
        {file.stem: file for file in entries(folder / name, _LAYOUT)}
        for name in ("images", "masks")
    )
    if not images:
        raise DataError(f"{folder / 'images'} has no images; {_LAYOUT}")
    odd = sorted(images.keys() ^ masks.keys())
    if odd:
        there, missing = ("images", "masks") if odd[0] in images else ("masks", "images")
        raise DataError(
            f"{folder / there} has {odd[0]!r}, but {folder / missing} has not; each image needs a "
            "mask of its name"
        )
    return [(images[stem], masks[stem]) for stem in sorted(images)]


def _write_masks(pairs: Sequence[tuple[Path, Path]], size: int | None, file: BinaryIO) -> None:
    write_images(file, _read_masks(pairs, size), len(pairs))


def _read_masks(
    pairs: Sequence[tuple[Path, Path]], size: int | None
) -> Iterator[tuple[str, Masks]]:
    for image, path in pairs:
        mask = _read_mask(path)
        height, width = _upright_size(image)
        if mask.shape != (height, width):
            raise DataError(
                f"{path} has {mask.shape[0]} x {mask.shape[1]} pixels, but its image {height} x "
                f"{width} (height, width); give each image a mask of its own size"
            )
        yield str(path), resize_masks(mask[np.newaxis], size)[0] if size else mask


def _upright_size(path: Path) -> tuple[int, int]:
    """Height and width of an image as it is read, which is upright."""
    with Image.open(path) as image:
        width, height = image.size
        lies = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    return (width, height) if lies else (height, width)


def _read_mask(path: Path) -> Masks:
    try:
        with Image.open(path) as image:
            mode, kind = image.mode, image.format
            mask = np.array(image, dtype=np.uint8)
    except Exception as error:  # Pillow's readers raise many kinds for what is not an image
        raise DataError(
            f"{path} is not an image that Pillow can read; mend it or take it out of the folder"
        ) from error
    if mode not in _MODES or kind == "JPEG":
        raise DataError(
            f"{path} is a {kind} of mode {mode!r}; a mask is a PNG with one channel whose numbers "
            f"are the classes, 0 and up, or {VOID} for none"
        )
    return mask


def _class_names(path: Path) -> tuple[str, ...] | None:
    if not path.exists():
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); expected one class a line") from error
    return tuple(line.strip() for line in lines if line.strip())
