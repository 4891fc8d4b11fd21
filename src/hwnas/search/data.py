"""Images with targets, divided once and for all into training, validation and test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import psutil

from hwnas.errors import ConfigError, DataError
from hwnas.search.image_cache import ImageCache, Images
from hwnas.search.raw_images import RawImages, Targets
from hwnas.search.sources import read_source
from hwnas.search.split import Rows, Split, draw

__all__ = ["DataConfig", "ImageData", "Split", "load_data"]

_TEST_FRACTION = 0.2
_TEST_SEED = 0


@dataclass(frozen=True)
class DataConfig:
    """The ``[data]`` table of a recipe.

    Attributes:
        source: ``"digits"``, ``"npz:FILE"``, ``"folder:PATH"`` or ``"package.module:function"``.
        validation_fraction: Of the training images, in (0, 1).
        size: Side in pixels that images are resized to. Those of a folder usually need it.
        train_limit: Use so many training images (validation included), picked at random.
        test_limit: Use so many test images, picked at random but the same for every seed.
    """

    source: str
    validation_fraction: float = 0.1
    size: int | None = None
    train_limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                f"data.validation_fraction is {self.validation_fraction}; expected a fraction "
                "between 0 and 1, such as 0.1"
            )
        for name in ("size", "train_limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"data.{name} is {value}; expected at least 1")


@dataclass(frozen=True, eq=False)
class ImageData:
    """All images of a run.

    Attributes:
        train: To learn weights from, and to recalibrate BatchNorm on.
        validation: To choose networks by; drawn from the training images.
        test: For finalists only.
        class_names: One a class, or None where the targets are values.
    """

    train: Split
    validation: Split
    test: Split
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, split in (("validation", self.validation), ("test", self.test)):
            if split.images.shape[1:] != self.image_shape:
                raise DataError(
                    f"training images are {self.image_shape} but {name} images are "
                    f"{split.images.shape[1:]} (height, width, channels); they must agree"
                )
            if split.targets.shape[1:] != self.train.targets.shape[1:]:
                raise DataError(
                    f"training targets have shape {self.train.targets.shape} but {name} targets "
                    f"{split.targets.shape}; they must agree beyond the number of images"
                )
            if split.images is self.train.images:
                shared = np.intersect1d(split.positions, self.train.positions)
                if len(shared):
                    raise DataError(
                        f"image {shared[0]} is for training and for {name}; keep the splits apart"
                    )
        if (self.train.targets.ndim == 1) != (self.class_names is not None):
            raise DataError("class_names belong to int64 targets (classes), and only to those")
        if self.class_names is not None:
            _check_classes(self, self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with the images, the targets or the division.

        Targets and positions count in full; of each split's images a sample (`Split.sample`).
        """
        content = hashlib.sha256(repr(self.class_names).encode())
        for split in (self.train, self.validation, self.test):
            for array in (split.sample(), split.targets, split.positions):
                content.update(repr(array.shape).encode() + array.tobytes())
        return content.hexdigest()[:12]

    @property
    def channel_mean(self) -> tuple[float, ...]:
        """Mean of each channel over a sample of the training images, for pixels in 0..1."""
        return self._moments[0]

    @property
    def channel_std(self) -> tuple[float, ...]:
        """Standard deviation of each channel, likewise; at least one grey level, 1/255."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        sample = self.train.sample()
        mean = sample.mean(axis=(0, 1, 2)) / 255
        std = (sample.std(axis=(0, 1, 2)) / 255).clip(min=1 / 255)
        return tuple(mean.tolist()), tuple(std.tolist())


def _check_classes(data: ImageData, class_names: tuple[str, ...]) -> None:
    if len(class_names) < 2:
        raise DataError(f"there is one class or none, {class_names}; expected two or more")
    for name, split in (
        ("training", data.train),
        ("validation", data.validation),
        ("test", data.test),
    ):
        low, high = split.targets.min(), split.targets.max()
        if low < 0 or high >= len(class_names):
            raise DataError(
                f"{name} labels go from {low} to {high}, but the {len(class_names)} classes from "
                f"0 to {len(class_names) - 1}; mend the labels or class_names"
            )
    empty = np.flatnonzero(np.bincount(data.train.targets, minlength=len(class_names)) == 0)
    if len(empty):
        raise DataError(
            f"class {empty[0]} ({class_names[empty[0]]!r}) has no training images; add some, raise "
            "data.train_limit or leave the class out"
        )


def load_data(
    config: DataConfig, base: Path, seed: int, cache: Path, map_above: int | None = None
) -> ImageData:
    """Read a set and divide it.

    The validation split is drawn from the training images, class by class. Where a source does not
    say which images are for testing (digits, a folder without ``test``), a fifth is set aside, the
    same fifth for every seed.

    Args:
        config: What to read, and how much.
        base: Folder that relative paths start from.
        seed: Of the validation draw and of the order of the training images.
        cache: Folder for decoded, resized and memory-mapped arrays; may be deleted between runs.
        map_above: Size in bytes above which a set is memory-mapped; a quarter of this machine's
            memory if None.

    Raises:
        ConfigError: The source is not known, or an option does not apply to it.
        DataError: The images or targets are missing, damaged or of the wrong shape.
        StorageError: The cache cannot be written.
    """
    limit = psutil.virtual_memory().total // 4 if map_above is None else map_above
    store = ImageCache(cache, limit)
    raw = read_source(config.source, base, config.size, store)
    if isinstance(raw, ImageData):
        return _as_given(raw, config)
    if not isinstance(raw, RawImages):
        raise DataError(
            f"data.source {config.source!r} gave a {type(raw).__name__}; expected an ImageData or "
            "a mapping with x_train, y_train, x_test and y_test"
        )
    return _divided(raw.resized(config.size, store) if config.size else raw, config, seed)


def _as_given(data: ImageData, config: DataConfig) -> ImageData:
    """A user's own division, which leaves nothing to limit or resize."""
    for name in ("size", "train_limit", "test_limit"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"data.{name} does not apply: {config.source!r} gives an ImageData, which is used "
                "as it is; do it in that function"
            )
    return data


def _divided(raw: RawImages, config: DataConfig, seed: int) -> ImageData:
    """Training, validation and test from what a source gave."""
    rng, test_rng = np.random.default_rng(seed), np.random.default_rng(_TEST_SEED)
    if raw.test is None:
        test_rows, rows = draw(raw.targets, _TEST_FRACTION, test_rng, "testing")
        test_images, test_targets = raw.images, raw.targets
    else:
        test_images, test_targets = raw.test
        test_rows, rows = test_rng.permutation(len(test_targets)), np.arange(len(raw.targets))
    rows = rng.permutation(rows)[: config.train_limit]
    names = _class_names(raw)
    picked, others = draw(raw.targets[rows], config.validation_fraction, rng, "validation")
    test_rows = test_rows[: config.test_limit]
    return ImageData(
        train=_split(raw.images, raw.targets, rows[others]),
        validation=_split(raw.images, raw.targets, rows[picked]),
        test=_split(test_images, test_targets, test_rows),
        class_names=names,
    )


def _split(images: Images, targets: Targets, rows: Rows) -> Split:
    return Split(images, targets[rows], rows)


def _class_names(raw: RawImages) -> tuple[str, ...] | None:
    """The names given, or the numbers of the classes as their names."""
    if raw.class_names is not None or raw.targets.ndim == 2:
        return raw.class_names
    classes = np.unique(raw.targets)
    gaps = np.flatnonzero(classes != np.arange(len(classes)))
    if len(gaps):
        raise DataError(
            f"class {gaps[0]} has no training images, but class {classes[-1]} has; number classes "
            "from 0 without gaps, or give class_names"
        )
    return tuple(map(str, classes))
