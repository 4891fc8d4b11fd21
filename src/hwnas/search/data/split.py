"""Splits of an image data set, and their stratified random draw."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.search.data.image_cache import Images, hold, release
from hwnas.search.data.pictures import check_pictures
from hwnas.search.data.raw_images import (
    TargetKind,
    Targets,
    check_images,
    check_mask_size,
    spaced_rows,
    target_kind,
)
from hwnas.search.engine.remote_files import fetched

__all__ = ["Rows", "Split", "draw", "draw_groups"]

Rows = npt.NDArray[np.int64]

_FIRST_SEED = 0


@dataclass(frozen=True)
class FilePlace:
    """Location of a memory-mapped array in a file, from which other processes can map it too.

    Attributes:
        path: Path of the mapped file.
        offset: Offset of the array's first byte in the file, in bytes.
        shape: Shape of the uint8 array, C order.
    """

    path: str
    offset: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, images: Images) -> FilePlace | None:
        """Return the location of an array; None if it is in memory or not contiguous."""
        if not isinstance(images, np.memmap) or not images.flags.c_contiguous:
            return None
        whole = images
        while isinstance(whole.base, np.memmap):
            whole = whole.base
        if whole.filename is None or whole.base is None:
            return None
        # A view has the offset of the whole map, so its own start is computed from the addresses.
        start = whole.offset + images.ctypes.data - whole.ctypes.data
        return cls(os.path.abspath(whole.filename), start, images.shape)

    def open(self) -> Images:
        """Map the array again, read-only.

        Raises:
            DataError: The file is missing or was truncated.
        """
        try:
            if not os.path.exists(self.path):
                fetched(Path(self.path))
            images = np.memmap(self.path, np.uint8, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            raise DataError(
                f"memory-mapped images {self.path} cannot be opened ({error}); every machine that "
                "works on a run needs room for this file at this path; data.cache sets its folder"
            ) from error
        hold(images)
        return images


@dataclass(frozen=True, eq=False)
class Split:
    """Part of a data set: some rows of an array of images and of their targets, in random order.

    Pickling a split with memory-mapped arrays passes the paths of their files, not their content.

    Attributes:
        images: All images, uint8 (M, H, W, C), perhaps memory-mapped and shared with other splits.
        image_targets: Targets of all images: int64 (M,) for classes, float32 (M, K) for values,
            uint8 (M, H, W) for masks, uint8 (M, T) for tokens and uint8 (M, H, W, C) for pictures,
            which may be memory-mapped, too; float32 (M, B, 5) for boxes.
        positions: Rows of both arrays that belong to this split, int64 (N,).
    """

    images: Images
    image_targets: Targets
    positions: Rows

    def __post_init__(self) -> None:
        check_images(self.images, "images")
        if self.images.ndim != 4:
            raise DataError(f"images have shape {self.images.shape}; expected (N, H, W, C)")
        target_kind(self.image_targets)
        if len(self.image_targets) != len(self.images):
            raise DataError(
                f"{len(self.images)} images but {len(self.image_targets)} targets; each image "
                "needs one"
            )
        if self.kind == "masks":
            check_mask_size(self.images, self.image_targets, "targets")
        elif self.kind == "pictures":
            check_pictures(self.images, self.image_targets, "targets")
        if self.positions.ndim != 1 or not len(self.positions):
            raise DataError(
                f"positions have shape {self.positions.shape}; expected (N,), at least one row"
            )
        if not 0 <= self.positions.min() <= self.positions.max() < len(self.images):
            raise DataError(
                f"positions have indices outside the range of the {len(self.images)} images"
            )

    def __len__(self) -> int:
        return len(self.positions)

    def __reduce__(self) -> tuple[Callable[..., Split], tuple[Any, ...]]:
        images = FilePlace.of(self.images) or self.images
        is_large = self.kind in ("masks", "pictures")
        targets = FilePlace.of(self.image_targets) if is_large else None
        return _unpickled, (images, targets or self.image_targets, self.positions)

    @property
    def kind(self) -> TargetKind:
        """Kind of the targets."""
        return target_kind(self.image_targets)

    @property
    def targets(self) -> Targets:
        """Copy of this split's targets, one per row; for masks it may be large."""
        found: Targets = np.asarray(self.image_targets[self.positions])
        return found

    def take(self, rows: npt.ArrayLike) -> tuple[Images, Targets]:
        """Return copies of some rows' images and targets.

        Args:
            rows: Row numbers in this split, integers (B,), each in 0..len - 1.

        Returns:
            uint8 (B, H, W, C) and the targets, with first dimension B.
        """
        chosen = self.positions[np.asarray(rows, dtype=np.int64)]
        images, targets = np.asarray(self.images[chosen]), np.asarray(self.image_targets[chosen])
        release(self.images, images.nbytes)
        if self.kind == "masks":
            release(self.image_targets, targets.nbytes)
        return images, targets

    def sample(self) -> tuple[Images, Targets]:
        """Return a sample of evenly spaced rows, at most 1,000 rows and 32 MB of pixels."""
        return self.take(spaced_rows(len(self), self.images[0].nbytes))

    def first(self, n: int) -> Split:
        """Return a split with at most ``n`` rows, the first of a fixed permutation.

        The permutation depends only on the number of rows. A smaller ``n`` therefore gives a subset
        of the rows of a larger one, and a split that is sorted by class gives rows of all classes.
        """
        if n >= len(self):
            return self
        rows = np.random.default_rng(_FIRST_SEED).permutation(len(self))[:n]
        return Split(self.images, self.image_targets, self.positions[rows])


def _unpickled(images: Images | FilePlace, targets: Targets | FilePlace, positions: Rows) -> Split:
    opened = images.open() if isinstance(images, FilePlace) else images
    targets = targets.open() if isinstance(targets, FilePlace) else targets
    return Split(opened, targets, positions)


def draw(classes: Rows, fraction: float, rng: np.random.Generator, what: str) -> tuple[Rows, Rows]:
    """Draw rows at random, stratified by class.

    One row of every class is never drawn. Of the other rows, the draw takes the same share of each
    class, to within one row.

    Args:
        classes: Class of each row, int64 (N,); the same for all rows if there are no classes.
        fraction: Share of the N rows to draw, in (0, 1).
        rng: Random number generator.
        what: Name of the drawn part, for messages.

    Returns:
        Drawn rows and remaining rows, each in random order.

    Raises:
        DataError: There are too few rows to draw from.
    """
    shuffled = rng.permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    kept = np.unique(classes[by_class], return_index=True)[1]
    free = np.delete(by_class, kept)
    count = min(round(fraction * len(classes)), len(free))
    if count == 0:
        raise DataError(
            f"{len(classes)} images are too few to take a fraction of {fraction} for {what} and "
            "leave one per class; add images, or use a larger fraction or fewer folds"
        )
    drawn = np.zeros(len(classes), dtype=bool)
    drawn[free[((np.arange(count) + 0.5) * len(free) / count).astype(np.int64)]] = True
    return shuffled[drawn[shuffled]], shuffled[~drawn[shuffled]]


def draw_groups(
    classes: Rows, groups: Rows, fraction: float, rng: np.random.Generator, what: str
) -> tuple[Rows, Rows]:
    """Draw whole groups of rows at random, about the same share of each class.

    Groups are considered in random order. A group is drawn if that brings the numbers of drawn
    rows, of each class and in all, nearer to the wanted ones, and if rows of each class remain.

    Args:
        classes: Class of each row; see `draw`.
        groups: Group of each row, int64 (N,).
        fraction: Share of the N rows to draw, in (0, 1).
        rng: Random number generator.
        what: Name of the drawn part, for messages.

    Returns:
        Drawn rows and remaining rows, each in random order.

    Raises:
        DataError: No group can be drawn.
    """
    _, classes = np.unique(classes, return_inverse=True)
    _, groups = np.unique(groups, return_inverse=True)
    counts = np.zeros((groups.max() + 1, classes.max() + 1))
    np.add.at(counts, (groups, classes), 1)
    counts = np.hstack([counts, counts.sum(axis=1, keepdims=True)])
    total = counts.sum(axis=0)
    missing, drawn = fraction * total, np.zeros(len(counts), dtype=bool)
    for group in rng.permutation(len(counts)):
        left = missing - counts[group]
        remain = total - counts[drawn].sum(axis=0) - counts[group]
        if (left**2).sum() < (missing**2).sum() and (remain > 0).all():
            missing, drawn[group] = left, True
    if not drawn.any():
        raise DataError(
            f"the {len(counts)} groups of images are too few, or too large, to take a fraction of "
            f"{fraction} for {what}, since a group is never divided; use more groups, a "
            "larger fraction, or fewer folds"
        )
    shuffled = rng.permutation(len(groups))
    chosen = drawn[groups[shuffled]]
    return shuffled[chosen], shuffled[~chosen]
