"""Loading of a source of image data, and its division into splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from hwnas.errors import ConfigError, DataError
from hwnas.home import home
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_data import DataConfig, ImageData, class_names_of
from hwnas.search.data.manifest import DataManifest
from hwnas.search.data.raw_images import RawImages, target_kind
from hwnas.search.data.sources import read_source, source_manifest
from hwnas.search.data.split import Rows, Split, draw, draw_groups

__all__ = ["all_images", "data_manifest", "labelled_images", "load_data"]

_TEST_FRACTION = 0.2
_TEST_SEED = 0
_MAP_ABOVE = 2**30  # bytes
_DIVIDED = (
    "the images are divided into parts for training and for testing already; name one of them: "
    "test, validation or train"
)


def load_data(
    config: DataConfig,
    base: Path,
    seed: int,
    cache: Path | None = None,
    map_above: int | None = None,
    on_decoded: Callable[[int, int | None], None] = lambda done, count: None,
) -> ImageData:
    """Read a data set and divide it into splits.

    If a source has no validation part, the validation split is drawn from the training images;
    where the targets are classes, the draw is stratified by class. If a source does not say which
    images are for testing (digits, a folder without ``test`` and ``val``), a fifth of its images
    becomes the test split, the same fifth for every seed.

    Args:
        config: Source to read, and limits on its size.
        base: Folder that relative paths start from.
        seed: Seed of the validation draw and of the order of the training images.
        cache: Folder for decoded, resized and memory-mapped arrays; that of ``config`` if None.
        map_above: Size in bytes above which a data set is memory-mapped; a gigabyte, or a quarter
            of this machine's memory if that is less, if None.
        on_decoded: Callback after each decoded image; see `ImageCache`.

    Raises:
        ConfigError: The source is unknown, or an option does not apply to it.
        DataError: The images or targets are missing, damaged or of the wrong shape.
        StorageError: The cache cannot be written.
    """
    raw = _read(config, base, cache, map_above, on_decoded)
    if isinstance(raw, ImageData):
        return _as_given(raw, config)
    data = _divided(raw, config, seed)
    if config.mean is not None and config.std is not None:
        data = replace(data, moments=(config.mean, config.std))
    object.__setattr__(data, "_source", raw.manifest)
    return data


def labelled_images(config: DataConfig, base: Path, class_names: tuple[str, ...]) -> Split:
    """Read all images of a source that is not divided into parts, as images of given classes.

    There may be any number of images, and classes without images, since nothing is trained on them.

    Args:
        config: Source to read.
        base: Folder that relative paths start from.
        class_names: Names of the classes, by which those of the source are found. Where the classes
            of the source are numbers, these may also be the positions of the names.

    Raises:
        ConfigError: The source is unknown.
        DataError: The images are missing, damaged, divided into parts or of another class, or do
            not have one class each.
        StorageError: The cache cannot be written.
    """
    raw = _read(config, base)
    if isinstance(raw, ImageData) or raw.test is not None or raw.validation is not None:
        raise DataError(_DIVIDED)
    if target_kind(raw.targets) != "classes":
        raise DataError(
            f"{config.source} has {target_kind(raw.targets)}; expected images with one class each"
        )
    numbers, found = np.unique(raw.targets, return_inverse=True)
    names = [str(each) if raw.class_names is None else raw.class_names[each] for each in numbers]
    if raw.class_names is None and not set(names) <= set(class_names):
        class_names = tuple(map(str, range(len(class_names))))
    unknown = [name for name in names if name not in class_names]
    if unknown:
        raise DataError(
            f"{config.source} has images of {unknown[0]!r}, which is none of the network's "
            f"{len(class_names)} classes {class_names[:5]}; give images with the classes of the "
            "network"
        )
    positions = np.array([class_names.index(name) for name in names])
    return Split(raw.images, positions[found], np.arange(len(found)))


def all_images(data: ImageData) -> Split:
    """Return the images of all splits together.

    Raises:
        DataError: The splits are from different parts of the source.
    """
    parts = (data.train, data.validation, data.test)
    if any(part.images is not data.train.images for part in parts):
        raise DataError(_DIVIDED)
    rows = np.concatenate([part.positions for part in parts])
    return Split(data.train.images, data.train.image_targets, rows)


def _read(
    config: DataConfig,
    base: Path,
    cache: Path | None = None,
    map_above: int | None = None,
    on_decoded: Callable[[int, int | None], None] = lambda done, count: None,
) -> RawImages | ImageData:
    """Read a source; images are in the size of the config, if that has one."""
    if map_above is None:
        map_above = min(_MAP_ABOVE, psutil.virtual_memory().total // 4)
    if cache is None:
        given = config.cache
        cache = home() / "images" if given is None else base / Path(given).expanduser()
    store = ImageCache(cache, map_above, on_decoded)
    size = config.image_size
    raw = read_source(config.source, base, size, store, config.skip_damaged)
    if isinstance(raw, ImageData):
        return raw
    if not isinstance(raw, RawImages):
        raise DataError(
            f"data.source {config.source!r} gave a {type(raw).__name__}; expected an ImageData or "
            "a mapping with x_train, y_train, x_test and y_test"
        )
    raw = replace(raw, manifest=raw.content)
    return raw.resized(size, store) if size else raw


def data_manifest(config: DataConfig, recipe_folder: Path) -> DataManifest | None:
    """Return the manifest of a recipe's data, without decoding an image.

    Args:
        config: Source of the data.
        recipe_folder: Folder that relative paths start from.

    Returns:
        The manifest that `load_data` would give; None if the source is a function, since that
        would have to be run first.

    Raises:
        ConfigError: The source is unknown.
        DataError: Files are missing, or folders do not have the expected layout.
    """
    return source_manifest(config.source, recipe_folder)


def _as_given(data: ImageData, config: DataConfig) -> ImageData:
    """Return the user's own `ImageData` unchanged; raise if an option would change it."""
    own = DataConfig(config.source)
    for name in ("size", "train_limit", "test_limit", "fit", "folds", "mean"):
        if getattr(config, name) != getattr(own, name):
            raise ConfigError(
                f"data.{name} does not apply: {config.source!r} gives an ImageData, which is used "
                "unchanged; resize or limit the images in that function"
            )
    return data


def _divided(raw: RawImages, config: DataConfig, seed: int) -> ImageData:
    """Divide the images of a source into training, validation and test splits."""
    rng, test_rng = np.random.default_rng(seed), np.random.default_rng(_TEST_SEED)
    strata = _strata(raw)
    every = np.arange(len(raw.targets))
    if raw.test is None:
        test_rows, rows = _drawn(raw, strata, every, _TEST_FRACTION, test_rng, "testing")
        test_images, test_targets = raw.images, raw.targets
    else:
        test_images, test_targets = raw.test
        test_rows, rows = test_rng.permutation(len(test_targets)), every
    rows = rng.permutation(rows)[: config.train_limit]
    names = class_names_of(raw)
    folds: tuple[Split, ...] = ()
    if raw.validation is not None and config.folds > 1:
        raise ConfigError(
            f"data.folds is {config.folds}, but {config.source!r} has a validation part of its "
            "own; leave data.folds out, or add that part to the images to train on"
        )
    if raw.validation is not None:
        validation = Split(*raw.validation, rng.permutation(len(raw.validation[1])))
    elif config.folds > 1:
        folds = tuple(
            Split(raw.images, raw.targets, part)
            for part in _folds(raw, strata, rows, config.folds, rng)
        )
        validation = folds[0]
        rows = np.concatenate([fold.positions for fold in folds[1:]])
    else:
        picked, rows = _drawn(raw, strata, rows, config.validation_fraction, rng, "validation")
        validation = Split(raw.images, raw.targets, picked)
    return ImageData(
        train=Split(raw.images, raw.targets, rows),
        validation=validation,
        test=Split(test_images, test_targets, test_rows[: config.test_limit]),
        class_names=names,
        skipped=raw.skipped,
        value_names=raw.value_names,
        fit=config.fit,
        folds=folds,
        value_classes=raw.value_classes,
    )


def _folds(
    raw: RawImages, strata: Rows, rows: Rows, count: int, rng: np.random.Generator
) -> list[Rows]:
    """Divide rows into parts of about the same size, each drawn from what the others left."""
    parts = []
    for left in range(count, 1, -1):
        part, rows = _drawn(raw, strata, rows, 1 / left, rng, f"one of {count} folds")
        parts.append(part)
    return [*parts, rows]


def _drawn(
    raw: RawImages,
    strata: Rows,
    rows: Rows,
    fraction: float,
    rng: np.random.Generator,
    what: str,
) -> tuple[Rows, Rows]:
    """Return a random share of some rows, whole groups if there are groups, and the other rows."""
    if raw.groups is None:
        drawn, others = draw(strata[rows], fraction, rng, what)
    else:
        drawn, others = draw_groups(strata[rows], raw.groups[rows], fraction, rng, what)
    return rows[drawn], rows[others]


def _strata(raw: RawImages) -> Rows:
    """Return the class of each image; 0 for all images if an image does not have one class."""
    if target_kind(raw.targets) == "classes":
        return raw.targets
    return np.zeros(len(raw.targets), np.int64)
