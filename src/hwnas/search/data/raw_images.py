"""Images and targets of a data source, with each array checked but not yet divided into splits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.hashing import content_hash
from hwnas.search.data.boxes import BOX_NUMBERS, check_boxes
from hwnas.search.data.image_cache import PIXELS_VERSION, ImageCache, Images, write_images
from hwnas.search.data.image_size import ImageSize, size_key
from hwnas.search.data.manifest import DataManifest, arrays_manifest
from hwnas.search.data.masks import Masks, check_masks
from hwnas.search.data.pictures import check_pictures

__all__ = [
    "PARTS",
    "RawImages",
    "TargetKind",
    "Targets",
    "check_images",
    "check_mask_size",
    "check_names",
    "held_out_parts",
    "kind_of_arrays",
    "main_part",
    "numbered_groups",
    "spaced_rows",
    "target_kind",
]

Targets = npt.NDArray[Any]
"""int64 (N,) for classes, float32 (N, K) for values, uint8 (N, H, W) for masks, float32 (N, M, 5)
for boxes, uint8 (N, H, W, C) for pictures, uint8 (N, T) for tokens."""

TargetKind = Literal["classes", "values", "masks", "boxes", "pictures", "tokens"]
_KINDS: Mapping[tuple[str, int], TargetKind] = {
    ("int64", 1): "classes",
    ("float32", 2): "values",
    ("uint8", 3): "masks",
    ("float32", 3): "boxes",
    ("uint8", 4): "pictures",
    ("uint8", 2): "tokens",
}

_BLOCK = 256
_VALIDATION = ("val", "valid", "validation")
PARTS = ("train", *_VALIDATION, "test")
"""Names that the parts of a source can have."""


def target_kind(targets: Targets) -> TargetKind:
    """Return the kind of targets, by their dtype and number of dimensions.

    Raises:
        DataError: The targets are of no known kind.
    """
    kind = _KINDS.get((str(targets.dtype), targets.ndim))
    if kind is None:
        raise DataError(
            f"targets are {targets.dtype} with shape {targets.shape}; expected int64 (N,) for "
            "classes, float32 (N, K) for values, uint8 (N, H, W) for masks, float32 (N, M, 5) for "
            "boxes, uint8 (N, H, W, C) for pictures, or uint8 (N, T) for tokens"
        )
    return kind


@dataclass(frozen=True, eq=False)
class RawImages:
    """Images and targets of a data source.

    Attributes:
        images: Images to train on, uint8 (N, H, W, C).
        targets: Targets of these images.
        class_names: Name of each class, or None if the source gives none.
        test: Images and targets to test on, or None if the source has no test part.
        validation: Images and targets to choose networks by, or None if they are to be drawn from
            the images to train on.
        value_names: Name of each value of an image, or None if the source gives none.
        groups: Group of each image to train on, int64 (N,); images of a group, such as those of one
            person, are never divided between splits. None if the source gives none.
        manifest: Manifest of the source; None if the arrays themselves are the source.
        skipped: Names of damaged images that were left out.
        value_classes: Names of the classes that each value is the number of; empty for a value that
            is a number. None if no value has such names.
    """

    images: Images
    targets: Targets
    class_names: tuple[str, ...] | None = None
    test: tuple[Images, Targets] | None = None
    manifest: DataManifest | None = None
    skipped: tuple[str, ...] = ()
    validation: tuple[Images, Targets] | None = None
    value_names: tuple[str, ...] | None = None
    groups: npt.NDArray[np.int64] | None = None
    value_classes: tuple[tuple[str, ...], ...] | None = None

    @classmethod
    def of(
        cls, arrays: Mapping[str, Any], where: str, floats_are_values: bool = False
    ) -> RawImages:
        """Check the four arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

        Integers with three or more dimensions are masks, and floats (N, M, 5) are boxes; uint8 (N,
        H, W, C) with the channels of the images are pictures, unless they have one channel and the
        size of the images. Without
        class names, targets (N, K) are values: floats for any K, whole numbers for K above 1; so
        are floats (N,), unless all are whole numbers.

        Args:
            arrays: The four arrays; ``x_val`` and ``y_val``, if the source has a validation part;
                ``class_names``, if the classes have names; and ``groups``, a number or text for
                each image to train on.
            where: Name of the source, for messages.
            floats_are_values: Whether floats (N,) are values also if all are whole numbers.

        Raises:
            DataError: An array is missing, or has the wrong dtype, shape, length or values.
        """
        parts = ("train", "test", *(["val"] if {"x_val", "y_val"} & arrays.keys() else []))
        check_names([f"{what}_{part}" for part in parts for what in "xy"], arrays, where)
        given = arrays.get("class_names")
        kind = kind_of_arrays(arrays, floats_are_values)
        found = []
        for part in parts:
            images = check_images(arrays[f"x_{part}"], f"{where}: x_{part}")
            given_targets = _array(arrays[f"y_{part}"])
            if kind == "pictures":
                targets = check_pictures(images, given_targets, f"{where}: y_{part}")
            else:
                targets = _CHECKS[kind](given_targets, f"{where}: y_{part}")
            if len(targets) != len(images):
                raise DataError(
                    f"{where}: {len(images)} images in x_{part} but {len(targets)} targets in "
                    f"y_{part}; each image needs one"
                )
            if target_kind(targets) == "masks":
                check_mask_size(images, targets, f"{where}: y_{part}")
            found.append((images, targets))
        names = None if given is None else _class_names(given, f"{where}: class_names")
        train, test, *validation = found
        return cls(
            *train,
            names,
            test,
            validation=validation[0] if validation else None,
            groups=numbered_groups(arrays.get("groups"), len(train[1]), f"{where}: groups"),
        )

    @classmethod
    def of_parts(cls, parts: Mapping[str, tuple[Images, Targets]], **facts: Any) -> RawImages:
        """Return the images and targets of parts, with the other attributes as given.

        Args:
            parts: Either one part, ``"all"``; or ``"train"`` and perhaps ``"test"`` and
                ``"validation"``.
            facts: Other attributes.
        """
        first = parts[main_part(parts)]
        test, validation = parts.get("test"), parts.get("validation")
        return cls(*first, test=test, validation=validation, **facts)

    @property
    def content(self) -> DataManifest:
        """Manifest of the source's files, or else of these arrays."""
        if self.manifest is not None:
            return self.manifest
        arrays: dict[str, Any] = {"x_train": self.images, "y_train": self.targets}
        if self.test is not None:
            arrays["x_test"], arrays["y_test"] = self.test
        if self.validation is not None:
            arrays["x_val"], arrays["y_val"] = self.validation
        if self.class_names is not None:
            arrays["class_names"] = self.class_names
        if self.groups is not None:
            arrays["groups"] = self.groups
        return arrays_manifest(arrays)

    def resized(self, size: ImageSize, cache: ImageCache) -> RawImages:
        """Return the data with images (and masks) of a size, kept in the cache.

        Raises:
            DataError: The targets are pictures, which would no longer fit.
            StorageError: The cache cannot be written.
        """
        given = {
            "train": (self.images, self.targets), "test": self.test, "validation": self.validation
        }  # fmt: skip
        parts = {part: arrays for part, arrays in given.items() if arrays is not None}
        wanted = (size.height, size.width)
        if target_kind(self.targets) == "tokens":  # their source made windows of this size
            return self
        if all(images.shape[1:3] == wanted for images, _ in parts.values()):
            return self
        if target_kind(self.targets) == "pictures":
            height, width = self.images.shape[1:3]
            raise DataError(
                f"data.size is {size.height} x {size.width}, but images with pictures as targets "
                f"keep their {height} x {width} pixels; leave it out"
            )
        manifest = self.content
        state = content_hash(manifest.fingerprint, self.skipped)[:12]
        writers: dict[str, Callable[[BinaryIO], None]] = {}
        for part, (images, targets) in parts.items():
            writers[part] = partial(_write_resized, images, size.resize)
            if target_kind(targets) == "masks":
                writers[f"{part}-masks"] = partial(_write_resized, targets, size.resize_masks)
        small = cache.arrays(f"resized-{size_key(size)}-{state}-v{PIXELS_VERSION}", writers)
        resized = {
            part: (small[part], small.get(f"{part}-masks", targets))
            for part, (_, targets) in parts.items()
        }
        images, targets = resized["train"]
        return replace(
            self,
            images=images,
            targets=targets,
            test=resized.get("test"),
            validation=resized.get("validation"),
            manifest=manifest,
        )


def _write_resized(
    images: Images, resize_block: Callable[[Images], Images], file: BinaryIO
) -> None:
    blocks = (images[start : start + _BLOCK] for start in range(0, len(images), _BLOCK))
    small = (image for block in blocks for image in resize_block(block))
    write_images(file, ((f"image {i}", image) for i, image in enumerate(small)), len(images))


def spaced_rows(count: int, image_bytes: int) -> npt.NDArray[np.int64]:
    """Return a sample of evenly spaced rows, at most 1,000 rows and 32 MB of pixels."""
    most = min(count, 1000, max(1, 2**25 // image_bytes))
    return np.linspace(0, count - 1, most).astype(np.int64)


def main_part(parts: Collection[str]) -> str:
    """Return the name of the part to train on: ``"all"`` if a source is not divided."""
    return "all" if "all" in parts else "train"


def held_out_parts(there: Collection[str]) -> dict[str, str]:
    """Return the names of a source's parts for testing and for validation, by purpose.

    Without a part ``test``, the part ``val`` (or ``valid``, ``validation``) is for testing, as in
    ImageNet's folders.

    Args:
        there: Names of all parts.

    Returns:
        Names by ``"test"`` and ``"validation"``, as far as there are such parts.
    """
    validation = next((name for name in _VALIDATION if name in there), None)
    if "test" not in there:
        return {} if validation is None else {"test": validation}
    return {"test": "test"} | ({} if validation is None else {"validation": validation})


def check_names(needed: Iterable[str], there: Iterable[str], where: str) -> None:
    """Raise if a source lacks an array; the message lists the arrays that it has.

    Raises:
        DataError: One or more arrays are missing.
    """
    there = sorted(there)
    missing = [name for name in needed if name not in there]
    if missing:
        raise DataError(
            f"{where} has no {', '.join(missing)}; expected {', '.join(needed)}; found "
            f"{', '.join(there) or 'nothing'}"
        )


def check_images(given: Any, name: str) -> Images:
    """Check images and return them as (N, H, W, C).

    Raises:
        DataError: The images are not uint8, not (N, H, W) or (N, H, W, C), or empty.
    """
    images = given if isinstance(given, np.ndarray) else np.asarray(given)
    if images.dtype != np.uint8:
        raise DataError(f"{name} is {images.dtype}; expected uint8, pixels from 0 to 255")
    if images.ndim not in (3, 4):
        raise DataError(f"{name} has shape {images.shape}; expected (N, H, W) or (N, H, W, C)")
    if 0 in images.shape:
        raise DataError(
            f"{name} has shape {images.shape}: it is empty; at least one image is needed"
        )
    return images if images.ndim == 4 else images[..., np.newaxis]


def check_mask_size(images: Images, masks: Masks, name: str) -> None:
    """Check that masks have the height and width of their images.

    Raises:
        DataError: The sizes differ.
    """
    if masks.shape[1:] != images.shape[1:3]:
        found, wanted = (
            " x ".join(map(str, shape)) for shape in (masks.shape[1:], images.shape[1:3])
        )
        raise DataError(
            f"{name} has masks of {found} pixels for images of {wanted}; give each image a mask of "
            "its own height and width"
        )


def _array(given: Any) -> npt.NDArray[Any]:
    """Convert to an array; an array is returned unchanged, so a memory-mapped one stays mapped."""
    return given if isinstance(given, np.ndarray) else np.asarray(given)


def kind_of_arrays(arrays: Mapping[str, Any], floats_are_values: bool = False) -> TargetKind:
    """Return the kind of the targets of arrays, by their dtype and shape; see `RawImages.of`."""
    targets = _array(arrays["y_train"])
    if (
        targets.dtype == np.uint8
        and targets.ndim == 4
        and (targets.shape[3] > 1 or targets.shape[1:3] != _array(arrays["x_train"]).shape[1:3])
    ):
        return "pictures"
    if targets.ndim == 3 and targets.shape[2] == BOX_NUMBERS and targets.dtype.kind == "f":
        return "boxes"
    if targets.ndim > 2:
        return "masks"
    if "class_names" in arrays or targets.dtype.kind not in "iubf":
        return "classes"
    columns = targets.shape[1] if targets.ndim == 2 else 0
    if targets.dtype.kind != "f":
        return "values" if columns > 1 else "classes"
    if floats_are_values or columns > 0 or not np.isfinite(targets).all():
        return "values"
    return "classes" if np.all(targets == np.floor(targets)) else "values"


def _labels(given: npt.NDArray[Any], name: str) -> Targets:
    labels = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    if labels.ndim != 1:
        raise DataError(
            f"{name} has shape {labels.shape}; expected (N,), one class per image, or masks, "
            "(N, H, W)"
        )
    if labels.dtype.kind not in "iubf":
        raise DataError(
            f"{name} is {labels.dtype}; expected integers, class 0 to number of classes - 1"
        )
    odd = np.flatnonzero(~(np.isfinite(labels) & (np.floor(labels) == labels)))
    if len(odd):
        raise DataError(
            f"{name}[{odd[0]}] is {labels[odd[0]]}; a class is a whole number. For values, leave "
            "class_names out"
        )
    negative = np.flatnonzero(labels < 0)
    if len(negative):
        raise DataError(
            f"{name}[{negative[0]}] is {labels[negative[0]]}; classes are numbered from 0"
        )
    return labels.astype(np.int64)


def _values(given: npt.NDArray[Any], name: str) -> Targets:
    if given.dtype.kind not in "iubf" or given.ndim not in (1, 2):
        raise DataError(
            f"{name} is {given.dtype} with shape {given.shape}; expected floats, (N,) or (N, K)"
        )
    values = given.reshape(len(given), -1).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise DataError(f"{name}[{bad[0]}] is {given[bad[0]]}; expected finite numbers")
    return values


def numbered_groups(given: Any, count: int, name: str) -> npt.NDArray[np.int64] | None:
    """Return the groups of images as numbers; None if there are none.

    Args:
        given: Number or text of each image's group, or None.
        count: Number of images.
        name: Name of the groups, for messages.

    Raises:
        DataError: There is not one number or text for each image.
    """
    if given is None:
        return None
    groups = _array(given)
    if groups.shape != (count,) or groups.dtype.kind not in "iubfUS":
        raise DataError(
            f"{name} is {groups.dtype} of shape {groups.shape}; expected a number or a text for "
            f"each of {count} images to train on"
        )
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


_CHECKS: Mapping[TargetKind, Callable[[npt.NDArray[Any], str], Targets]] = {
    "boxes": check_boxes,
    "masks": check_masks,
    "classes": _labels,
    "values": _values,
}
"""Checks of targets that depend on nothing else, by their kind."""


def _class_names(given: Any, name: str) -> tuple[str, ...]:
    names = np.asarray(given)
    if names.ndim != 1:
        raise DataError(f"{name} has shape {names.shape}; expected one name per class")
    return tuple(item.decode() if isinstance(item, bytes) else str(item) for item in names.tolist())
