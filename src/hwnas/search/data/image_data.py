"""Image data sets, divided into training, validation and test splits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from hwnas.config_class import config_class
from hwnas.deploy.bundles.image_file import Fit
from hwnas.deploy.io import Preprocessing
from hwnas.errors import ConfigError, DataError
from hwnas.search.data.boxes import box_classes
from hwnas.search.data.image_cache import PIXELS_VERSION
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.manifest import DataManifest, arrays_manifest
from hwnas.search.data.masks import VOID, class_counts
from hwnas.search.data.raw_images import RawImages, TargetKind, Targets, target_kind
from hwnas.search.data.split import Rows, Split

__all__ = ["DataConfig", "ImageData", "Split", "class_names_of"]

_WITHOUT_CLASSES = ("values", "pictures", "tokens")
_COUNTED = {"masks": "pixels", "boxes": "boxes"}  # what has a class, if not images


@config_class
@dataclass(frozen=True)
class DataConfig:
    """Settings of the ``[data]`` table of a recipe.

    Attributes:
        source: ``"digits"``, ``"npz:FILE"``, ``"folder:PATH"``, ``"upscale2:PATH"``,
            ``"text:PATH"`` or ``"package.module:function"``.
        validation_fraction: Share of the training images used for validation, in (0, 1), unless
            the source has a validation part.
        size: Height and width in pixels that images are resized to, or one number for both. Image
            folders usually need it. For text, the number of bytes of a window.
        fit: How images get the aspect ratio of `size`, and of a network's input: ``"stretch"``, or
            ``"crop"``, which cuts off what sticks out at both ends.
        cache: Folder for decoded images, which runs share; ``images`` in `hwnas.home.home` if None.
        folds: Number of parts for cross-validation, in which the evaluator ``"train"`` trains and
            scores each candidate so many times; 1 for none. ``validation_fraction`` does not apply.
        train_limit: Number of training images to use, picked at random; validation images that are
            drawn from them are included.
        test_limit: Number of test images to use, picked at random but the same for every seed.
        skip_damaged: Whether to leave out image files that cannot be decoded, instead of refusing
            the data set.
        mean: Mean of each channel that is subtracted, for pixels in 0..1; that of the training
            images if None. Trained models need that of their training.
        std: Standard deviation of each channel, likewise.
    """

    source: str
    validation_fraction: float = 0.1
    size: int | tuple[int, ...] | None = None
    train_limit: int | None = None
    test_limit: int | None = None
    skip_damaged: bool = False
    fit: Fit = "stretch"
    cache: str | None = None
    folds: int = 1
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            given, missing = ("mean", "std") if self.std is None else ("std", "mean")
            raise ConfigError(f"data has {given}, but no {missing}; give both")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ConfigError(f"data.std is {list(self.std)}; expected numbers above 0")
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                f"data.validation_fraction is {self.validation_fraction}; expected a fraction "
                "between 0 and 1, such as 0.1"
            )
        if isinstance(self.size, tuple) and len(self.size) != 2:
            raise ConfigError(
                f"data.size is {list(self.size)}; expected a number, or a height and a width"
            )
        for name in ("size", "train_limit", "test_limit", "folds"):
            value = getattr(self, name)
            if value is not None and min(value if isinstance(value, tuple) else [value]) < 1:
                raise ConfigError(f"data.{name} is {value}; expected at least 1")
        if self.fit not in get_args(Fit):
            raise ConfigError(
                f"data.fit is {self.fit!r}; expected {' or '.join(map(repr, get_args(Fit)))}"
            )

    @property
    def image_size(self) -> ImageSize | None:
        """Size that images are brought to; None for their own."""
        if self.size is None:
            return None
        height, width = self.size if isinstance(self.size, tuple) else (self.size,) * 2
        return ImageSize(height, width, self.fit)


@dataclass(frozen=True, eq=False)
class ImageData:
    """Data set of a run, in three splits.

    Attributes:
        train: Split to learn weights from, and to recalibrate BatchNorm on.
        validation: Split to choose networks by.
        test: Split for finalists only.
        class_names: Names of the classes of images, pixels or objects; None if the targets are
            values, pictures or tokens.
        skipped: Names of damaged images that were left out.
        value_names: Names of the values of an image, if the source has any.
        fit: How images get the aspect ratio of a network's input; see `DataConfig`.
        folds: Parts for cross-validation, each the rows of `validation` in one of its rounds; all
            of these rows together are those of `train` and `validation`. Empty for none.
        moments: Mean and standard deviation of each channel, for pixels in 0..1; those of the
            training images if None.
        value_classes: Names of the classes that each value is the number of, if the source has any.
    """

    train: Split
    validation: Split
    test: Split
    class_names: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()
    value_names: tuple[str, ...] | None = None
    fit: Fit = "stretch"
    folds: tuple[Split, ...] = ()
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    value_classes: tuple[tuple[str, ...], ...] | None = None
    # Manifest of the source that `load_data` read. `dataclasses.replace` does not copy it.
    _source: DataManifest | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, split in (("validation", self.validation), ("test", self.test)):
            if split.images.shape[1:] != self.image_shape:
                raise DataError(
                    f"training images are {self.image_shape} but {name} images are "
                    f"{split.images.shape[1:]} (height, width, channels); they must agree"
                )
            ours, theirs = self.train.image_targets, split.image_targets
            as_large = theirs.shape[1:] == ours.shape[1:] or split.kind == "boxes"
            if split.kind != self.kind or not as_large:
                raise DataError(
                    f"training targets are {self.kind} of shape {ours.shape} but {name} targets "
                    f"{split.kind} of {theirs.shape}; only the number of images may differ"
                )
            if split.images is self.train.images:
                shared = np.intersect1d(split.positions, self.train.positions)
                if len(shared):
                    raise DataError(
                        f"image {shared[0]} is in the training and in the {name} split; each image "
                        "may be in one split only"
                    )
        if self.fit == "crop" and self.kind in ("masks", "boxes", "pictures"):
            raise DataError(
                f"images with {self.kind} cannot be cropped, since nothing would be predicted for "
                'the pixels that are cut off; set data.fit = "stretch"'
            )
        for moment in self.moments or ():
            if len(moment) != self.image_shape[2]:
                raise DataError(
                    f"data.mean and data.std have {len(moment)} numbers; expected "
                    f"{self.image_shape[2]}, one for each channel"
                )
        if (self.kind in _WITHOUT_CLASSES) != (self.class_names is None):
            raise DataError(
                "class_names are required for classes, int64 (N,), masks, uint8 (N, H, W), and "
                "boxes, float32 (N, M, 5), and not allowed for values, pictures and tokens, but "
                f"these targets are {self.kind}"
            )
        if self.class_names is not None:
            _check_classes(self, self.class_names)

    @property
    def kind(self) -> TargetKind:
        """Kind of the targets: classes of images, values, masks, or boxes."""
        return self.train.kind

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels

    @cached_property
    def manifest(self) -> DataManifest:
        """Manifest of the files or arrays that the images and targets were loaded from."""
        if self._source is not None:
            return self._source
        arrays: dict[str, Any] = {}
        for name, split in self._splits:
            for what, array in (("images", split.images), ("targets", split.image_targets)):
                # Splits usually share their arrays.
                if not any(array is other for other in arrays.values()):
                    arrays[f"{name} {what}"] = array
        return arrays_manifest(arrays)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all images, all targets and the division into splits: 12 hexadecimal digits.

        Images, masks and pictures enter the hash through the manifest, which covers each of them;
        other targets and the positions of each split enter it directly.
        """
        content = hashlib.sha256()
        facts = (self.manifest.fingerprint, PIXELS_VERSION, self.image_shape, self.kind)
        fit = () if self.fit == "stretch" else (self.fit,)
        content.update(repr((*facts, self.class_names, self.skipped, *fit)).encode())
        for _, split in self._splits:
            targets = () if split.kind in ("masks", "pictures") else (split.targets,)
            for array in (split.positions, *targets):
                content.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
        for fold in self.folds:
            content.update(fold.positions.tobytes())
        return content.hexdigest()[:12]

    @property
    def _splits(self) -> tuple[tuple[str, Split], ...]:
        return ("train", self.train), ("validation", self.validation), ("test", self.test)

    @cached_property
    def rounds(self) -> tuple[ImageData, ...]:
        """Rounds of the cross-validation, in each of which another fold is for validation.

        The first round has this data's own splits; without folds it is the only one.
        """
        others = []
        for fold in self.folds[1:]:
            rows = [each.positions for each in self.folds if each is not fold]
            train = Split(fold.images, fold.image_targets, np.concatenate(rows))
            others.append(replace(self, train=train, validation=fold, folds=()))
        return (self, *others)

    @property
    def channel_mean(self) -> tuple[float, ...]:
        """Mean of each channel, given or of a sample of the training images, in 0..1."""
        return self._moments[0]

    @property
    def channel_std(self) -> tuple[float, ...]:
        """Standard deviation of each channel, given or of the same sample, for pixels in 0..1.

        That of the sample is at least one grey level, 1/255.
        """
        return self._moments[1]

    def check_numbers(self, task: str) -> None:
        """Raise if a value is the number of a class, which a task would read as an amount.

        Args:
            task: Name of the task, for the message.

        Raises:
            DataError: The source names the classes of a value.
        """
        for number, classes in enumerate(self.value_classes or ()):
            if classes:
                name = self.value_names[number] if self.value_names else str(number)
                raise DataError(
                    f"task {task} needs numbers, but the column {name} has the texts "
                    f"{', '.join(map(repr, classes[:3]))}; leave the column out, or name task "
                    "multi-task"
                )

    @property
    def preprocessing(self) -> Preprocessing:
        """Conversion of these images to a network's input, at their own size."""
        height, width, channels = self.image_shape
        moments = (self.channel_mean, self.channel_std)
        return Preprocessing(height, width, channels, *moments, self.fit)

    @cached_property
    def _moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self.moments is not None:
            return self.moments
        sample, _ = self.train.sample()
        mean = sample.mean(axis=(0, 1, 2)) / 255
        std = (sample.std(axis=(0, 1, 2)) / 255).clip(min=1 / 255)
        return tuple(mean.tolist()), tuple(std.tolist())


def _check_classes(data: ImageData, class_names: tuple[str, ...]) -> None:
    least = 1 if data.kind == "boxes" else 2
    if len(class_names) < least:
        expected = "one or more" if least == 1 else "two or more"
        raise DataError(f"the data have the classes {class_names}; expected {expected}")
    for name, split in (
        ("training", data.train),
        ("validation", data.validation),
        ("test", data.test),
    ):
        classes = _classes(split.image_targets, split.positions)
        if not len(classes):
            raise DataError(
                f"no pixel of the {name} masks has a class: all are {VOID}"
                if data.kind == "masks"
                else f"no {name} image has a box; add images with objects"
            )
        if classes[0] < 0 or classes[-1] >= len(class_names):
            raise DataError(
                f"{name} labels go from {classes[0]} to {classes[-1]}, but the {len(class_names)} "
                f"classes from 0 to {len(class_names) - 1}; correct the labels or class_names"
            )
        empty = np.setdiff1d(np.arange(len(class_names)), classes)
        if name == "training" and len(empty):
            what = _COUNTED.get(data.kind, "images")
            raise DataError(
                f"class {empty[0]} ({class_names[empty[0]]!r}) has no training {what}; add some, "
                "raise data.train_limit or leave the class out"
            )


def _classes(targets: Targets, rows: Rows) -> Rows:
    """Return the distinct classes of some rows' labels, pixels or objects, sorted."""
    if target_kind(targets) == "masks":
        return np.flatnonzero(class_counts(targets, rows)[:VOID])
    if target_kind(targets) == "boxes":
        return box_classes(targets, rows)
    return np.unique(targets[rows])


def class_names_of(raw: RawImages) -> tuple[str, ...] | None:
    """Return the class names of a source, or the class numbers as names if it gives none.

    Raises:
        DataError: A class without a name has no image.
    """
    kind = target_kind(raw.targets)
    if raw.class_names is not None or kind in _WITHOUT_CLASSES:
        return raw.class_names
    classes = _classes(raw.targets, np.arange(len(raw.targets)))
    what = _COUNTED.get(kind, "images")
    gaps = np.flatnonzero(classes != np.arange(len(classes)))
    if len(gaps):
        raise DataError(
            f"class {gaps[0]} has no training {what}, but class {classes[-1]} has; number classes "
            "from 0 without gaps, or give class_names"
        )
    return tuple(map(str, classes))
