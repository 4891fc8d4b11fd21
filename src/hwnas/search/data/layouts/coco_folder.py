"""Image data sets in COCO's format: folders of images, and a JSON file of boxes for each part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hwnas.errors import DataError
from hwnas.search.data.boxes import Boxes, padded_boxes
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.layouts.image_folder import FolderFiles, FolderListing, decode_files
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.raw_images import PARTS, RawImages, held_out_parts, main_part

__all__ = ["coco_manifest", "has_coco", "read_coco"]

_ANNOTATIONS = "annotations"
_PREFIX = "instances_"
_BESIDE = "_annotations.coco.json"
_LAYOUT = (
    f"expected {_ANNOTATIONS}/{_PREFIX}train2017.json for images in train2017/, and so on, or "
    f"{_BESIDE} beside the images, perhaps in train/, valid/ and test/"
)
_LEAST_SIDE = 1e-4
"""Least width and height of a box, as shares of the image's; COCO has a few boxes without area."""


@dataclass(frozen=True)
class _Part:
    """Images and boxes of a part.

    Attributes:
        files: Image files, by their path in the folder of the data set, with their states.
        boxes: Boxes of each image, with the ids of categories as classes.
        names: Name of each category by its id.
    """

    files: FolderFiles
    boxes: Sequence[Sequence[Sequence[float]]]
    names: Mapping[int, str]


def has_coco(folder: Path) -> bool:
    """Return whether a folder has JSON files of boxes in COCO's format."""
    return bool(_annotation_files(folder))


def coco_manifest(folder: Path) -> DataManifest:
    """Return the manifest of the JSON files and of all images in them, without opening an image.

    Raises:
        DataError: A JSON file is damaged, or an image is missing.
    """
    return _listed(folder)[1]


def read_coco(
    folder: Path, size: ImageSize | None, cache: ImageCache, skip_damaged: bool = False
) -> RawImages:
    """Read images and boxes in COCO's format (Lin et al., "Microsoft COCO", ECCV 2014).

    Boxes of crowds (``iscrowd``) and boxes without area are left out. Images without boxes stay.
    Classes are numbered in the order of their ids, without those that have no box to train on.

    Args:
        folder: Folder with ``annotations/instances_PART.json`` and the images in ``PART/``; or with
            ``_annotations.coco.json`` beside the images, itself or in folders of parts.
        size: Size that images are brought to; None keeps their own, which must be the same for all.
        cache: Cache for the decoded images.
        skip_damaged: Whether to leave out images that cannot be decoded.

    Raises:
        DataError: A JSON file or an image is damaged, an image is missing, or sizes differ.
        StorageError: The cache cannot be written.
    """
    parts, manifest = _listed(folder)
    main = parts[main_part(parts)]
    ids = sorted({int(box[4]) for each in main.boxes for box in each})
    classes = {each: number for number, each in enumerate(ids)}
    files = {part: each.files for part, each in parts.items()}
    decoded = decode_files(folder, files, manifest, size, cache, skip_damaged)
    targets: dict[str, Boxes] = {}
    for part, each in parts.items():
        numbered = [
            [(*box[:4], classes[int(box[4])]) for box in found if int(box[4]) in classes]
            for found in each.boxes
        ]
        targets[part] = padded_boxes([numbered[row] for row in decoded.parts[part].kept])
    return RawImages.of_parts(
        {part: (decoded.arrays[part], targets[part]) for part in parts},
        class_names=tuple(main.names[each] for each in ids),
        manifest=manifest,
        skipped=decoded.skipped,
    )


def _annotation_files(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the JSON file of each part, and the folder of its images, relative to ``folder``.

    The part is ``"all"``, or one of `PARTS`. COCO's parts may end in a year, such as ``train2017``;
    annotation tools call a set that is not divided ``default``.
    """
    if (folder / _BESIDE).is_file():
        return {"all": (_BESIDE, "")}
    found = {
        part: (f"{part}/{_BESIDE}", f"{part}/")
        for part in PARTS
        if (folder / part / _BESIDE).is_file()
    }
    if found or not (folder / _ANNOTATIONS).is_dir():
        return found
    for path in sorted((folder / _ANNOTATIONS).glob(f"{_PREFIX}*.json")):
        name = path.stem.removeprefix(_PREFIX)
        part = "all" if name == "default" else name.rstrip("0123456789")
        if part in ("all", *PARTS):
            images = f"{name}/" if (folder / name).is_dir() else "images/"
            found[part] = (f"{_ANNOTATIONS}/{path.name}", images)
    return found


def _listed(folder: Path) -> tuple[Mapping[str, _Part], DataManifest]:
    """Return the images and boxes by part, and the manifest of all files."""
    there = _annotation_files(folder)
    named = {"all": "all"} if "all" in there else {"train": "train", **held_out_parts(there)}
    if "all" not in there and "train" not in there:
        raise DataError(f"{folder} has boxes of {', '.join(there)} but not of train; {_LAYOUT}")
    if named == {"train": "train"}:
        named = {"all": "train"}
    states: dict[str, str] = {}
    parts = {part: _part(folder, *there[name], states) for part, name in named.items()}
    return parts, DataManifest("files", states)


def _part(folder: Path, file: str, images: str, states: dict[str, str]) -> _Part:
    """Read the JSON file of a part; add the states of its files to ``states``."""
    path = folder / file
    content = _content(path)
    try:
        names = {int(each["id"]): str(each["name"]) for each in content["categories"]}
        files = [str(each["file_name"]) for each in content["images"]]
        rows = {each["id"]: row for row, each in enumerate(content["images"])}
        if not rows or len(rows) < len(files):
            raise ValueError("no images, or an id of an image twice")
        boxes: list[list[tuple[float, ...]]] = [[] for _ in rows]
        for each in content["annotations"]:
            if each.get("iscrowd"):
                continue
            row = rows[each["image_id"]]
            box = _shares(each["bbox"], content["images"][row])
            if box is not None:
                boxes[row].append((*box, int(each["category_id"])))
        if unknown := {int(box[4]) for found in boxes for box in found} - names.keys():
            raise ValueError(f"no category {min(unknown)}")
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{path} is not in COCO's format ({type(error).__name__}: {error}); {_LAYOUT}"
        ) from error
    listing = FolderListing(folder, _LAYOUT)
    found = _image_states(folder, path, images, files, listing)
    states |= found
    states[file] = listing.state(PurePosixPath(file)) or ""
    return _Part(found, boxes, names)


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); {_LAYOUT}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not in COCO's format (a {type(content).__name__}); {_LAYOUT}")
    return content


def _shares(box: Sequence[float], image: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return left, top, right and bottom as shares of an image; None for a box without area.

    Boxes that stick out of the image are cut.
    """
    x, y, width, height = map(float, box)
    sides = (float(image["width"]), float(image["height"]))
    left, right = (min(max(each / sides[0], 0.0), 1.0) for each in (x, x + width))
    top, bottom = (min(max(each / sides[1], 0.0), 1.0) for each in (y, y + height))
    if right - left < _LEAST_SIDE or bottom - top < _LEAST_SIDE:
        return None
    return left, top, right, bottom


def _image_states(
    folder: Path, path: Path, images: str, files: Sequence[str], listing: FolderListing
) -> FolderFiles:
    """Return the image files by their path in the folder, with their states, in the given order."""
    found: dict[str, str] = {}
    for file in files:
        name = PurePosixPath(images, file)
        if name.is_absolute() or ".." in name.parts:
            raise DataError(f"{path}: {file} is not in the folder; {_LAYOUT}")
        state = listing.state(name)
        if state is None:
            raise DataError(
                f"{path}: there is no image {folder / name}; add it, or remove it from the file"
            )
        if str(name) in found:
            raise DataError(f"{path}: {file} is listed twice; remove one of them")
        found[str(name)] = state
    return found
