"""Images that a Python program gives: a path, arrays, a torch Dataset, or objects of hwnas."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from hwnas.api.object_names import importable_name
from hwnas.config_class import given_fields
from hwnas.errors import ConfigError, DataError
from hwnas.experiment.from_images import (
    TaskKind,
    data_table,
    is_image_source,
    kind_of_targets,
    kind_of_task,
    name_of,
)
from hwnas.given_objects import unnamed
from hwnas.run_folder import IMAGES
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.raw_images import RawImages
from hwnas.search.data.split import draw

__all__ = ["Data", "GivenImages", "MapDataset"]

_TEST_FRACTION = 0.2
_MINUTES = 45.0  # of a job without a budget, for the size of the images of a folder
_DEFAULT_NAME = "images"


@runtime_checkable
class MapDataset(Protocol):
    """Data set with a length and items ``(image, label)``, such as a ``torch.utils.data.Dataset``.

    An image is a Pillow image; uint8 (H, W) or (H, W, C) in NumPy; or a tensor (C, H, W), uint8 or
    floating-point in 0..1. It must not be normalised or augmented, since hwnas does both.
    """

    def __len__(self) -> int:
        """Return the number of images."""

    def __getitem__(self, index: int, /) -> tuple[Any, Any]:
        """Return an image and its label."""


Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Data: TypeAlias = (
    str
    | Path
    | DataConfig
    | ImageData
    | MapDataset
    | tuple[npt.NDArray[Any], npt.NDArray[Any]]
    | Mapping[str, Any]
    | Callable[[], ImageData | Arrays]
)
"""Images of a search; see `hwnas.search`."""


@dataclass(frozen=True)
class GivenImages:
    """Images in the form in which a recipe has them.

    Attributes:
        table: Table ``[data]`` of the recipe.
        name: Name for a run on these images.
        data: Images that no recipe can name; None for all others.
        arrays: Arrays to keep in the folder of the run.
        kind: Kind of the targets, as far as it is known without decoding images.
    """

    table: Mapping[str, Any]
    name: str = _DEFAULT_NAME
    data: ImageData | None = None
    arrays: Arrays = field(default_factory=dict)
    kind: TaskKind = "classes"

    @classmethod
    def of(cls, data: Data, folder: Path | None, minutes: float | None) -> GivenImages:
        """Return the images of a program.

        Args:
            data: See `hwnas.search`.
            folder: Folder of the run; a folder with the run's name under ``runs`` if None.
            minutes: Budget of the job, which bounds the size of the images of a folder.

        Raises:
            ConfigError: There is no such file, or the object is of an unknown type.
            DataError: The arrays are of the wrong type or shape.
        """
        if isinstance(data, DataConfig):
            return cls._of_config(data)
        if isinstance(data, ImageData):
            return cls({"source": unnamed("data")}, data=data, kind=data.kind)
        if isinstance(data, str | Path):
            return cls._of_path(data, minutes)
        if isinstance(data, Mapping):
            return cls._of_arrays(_four_arrays(data), folder)
        if isinstance(data, tuple) or _are_arrays(data):
            return cls._of_arrays(_with_test(*_pair(data)), folder)
        if isinstance(data, MapDataset) and not isinstance(data, np.ndarray | torch.Tensor):
            return cls._of_arrays(_with_test(*_collected(data), _class_names(data)), folder)
        if callable(data):
            return cls._of_function(data, folder)
        raise ConfigError(
            f"data is a {type(data).__name__}; expected a path, arrays (images, labels), a mapping "
            "of x_train, y_train, x_test and y_test, a data set with a length and items (image, "
            "label), an ImageData, or a function that returns one"
        )

    @classmethod
    def _of_path(cls, data: str | Path, minutes: float | None) -> GivenImages:
        path = Path(data).expanduser()
        if not path.exists() and isinstance(data, str) and (":" in data or data == "digits"):
            return cls._of_config(DataConfig(data))
        if path.exists() and not is_image_source(path):
            raise ConfigError(
                f"{path} is neither a folder of images nor an .npz file; for a recipe use "
                "hwnas.search_recipe(RECIPE)"
            )
        if not path.exists():
            raise ConfigError(
                f"{path} does not exist; give a folder of images, an .npz file, or a data.source "
                'of a recipe, such as "digits"'
            )
        table = data_table(path, minutes or _MINUTES)
        return cls(table, name_of(path), kind=kind_of_targets(path))

    @classmethod
    def _of_config(cls, config: DataConfig) -> GivenImages:
        table = given_fields(config)
        source = str(table.get("source", config.source))
        kind, _, place = source.partition(":")
        path = Path(os.path.expandvars(place)).expanduser()
        found: TaskKind = "classes"
        if kind == "text":
            found = "tokens"
        elif kind in ("folder", "npz") and path.exists():
            found = kind_of_targets(path)
        return cls({**table, "source": source}, _name_of_source(source), kind=found)

    @classmethod
    def _of_arrays(cls, arrays: Arrays, folder: Path | None) -> GivenImages:
        RawImages.of(arrays, "data")  # raises an error that names the array
        kind = kind_of_task(arrays)
        path = (folder or Path("runs", _DEFAULT_NAME)).absolute() / IMAGES
        return cls({"source": f"npz:{path}"}, arrays=arrays, kind=kind)

    @classmethod
    def _of_function(cls, make: Callable[[], Any], folder: Path | None) -> GivenImages:
        name = importable_name(make)
        if name is not None:
            return cls({"source": name}, _name_of_source(name))
        made = make()
        if isinstance(made, ImageData):
            return cls({"source": unnamed("data")}, data=made, kind=made.kind)
        if isinstance(made, Mapping):
            return cls._of_arrays(_four_arrays(made), folder)
        raise ConfigError(
            f"the function that was given as data returns a {type(made).__name__}; expected an "
            "ImageData, or a mapping of x_train, y_train, x_test and y_test"
        )


def _name_of_source(source: str) -> str:
    kind, colon, place = source.partition(":")
    return name_of(Path(place or kind)) if colon else kind


def _pair(data: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if len(data) != 2:
        raise ConfigError(
            f"data is a tuple of {len(data)}; expected (images, labels). With test images of your "
            "own, give a mapping of x_train, y_train, x_test and y_test"
        )
    images, targets = map(_array, data)
    return images, targets


def _are_arrays(data: object) -> bool:
    """Return whether data is a list of arrays of images and labels, as a tuple would be."""
    return isinstance(data, list) and len(data) == 2 and all(hasattr(e, "shape") for e in data)


def _array(given: Any) -> npt.NDArray[Any]:
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    return np.asarray(given)


def _four_arrays(data: Mapping[str, Any]) -> Arrays:
    """Return the arrays of a mapping of arrays, or of data sets ``train`` and ``test``."""
    if "train" not in data:
        return {name: _array(each) for name, each in data.items()}
    unknown = sorted(set(data) - {"train", "test"})
    parts = {name: data[name] for name in ("train", "test") if name in data}
    strange = [name for name, each in parts.items() if not isinstance(each, MapDataset)]
    if unknown or strange:
        raise ConfigError(
            f"data has {', '.join(unknown or strange)}; expected data sets 'train' and perhaps "
            "'test', each with a length and items (image, label)"
        )
    names = _class_names(parts["train"])
    if "test" not in parts:
        return _with_test(*_collected(parts["train"]), names)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, each in parts.items():
        arrays[f"x_{part}"], arrays[f"y_{part}"] = _collected(each)
    return arrays | ({} if names is None else {"class_names": np.array(names)})


def _class_names(data: object) -> Sequence[str] | None:
    """Return the class names of a data set of torchvision's kind."""
    names = getattr(data, "classes", None)
    return [str(name) for name in names] if isinstance(names, Sequence) else None


def _collected(data: MapDataset) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return all images of a data set, uint8 (N, H, W, C), and their labels."""
    images, labels = [], []
    for index in range(len(data)):
        item = data[index]
        try:
            image, label = item
        except (TypeError, ValueError):
            raise DataError(
                f"item {index} of the data set is a {type(item).__name__}; expected (image, label)"
            ) from None
        images.append(_pixels(image, index))
        labels.append(_array(label))
    if not images:
        raise DataError("the data set is empty; at least one image is needed")
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise DataError(
            f"images have different shapes, such as {shapes[0]} and {shapes[-1]} (height, width, "
            "channels); let the data set resize and crop them, or give the folder of the images"
        )
    return np.stack(images), np.stack(labels)


def _pixels(image: Any, index: int) -> npt.NDArray[np.uint8]:
    """Return one image as uint8 (H, W, C)."""
    if isinstance(image, Image.Image):
        image = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    elif isinstance(image, torch.Tensor):
        image = np.moveaxis(_array(image), 0, -1) if image.ndim == 3 else _array(image)
        if image.dtype.kind == "f":
            image = _of_shares(image, index)
    pixels: npt.NDArray[Any] = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise DataError(
            f"image {index} is {pixels.dtype} of shape {pixels.shape}; expected a Pillow image, "
            "uint8 (H, W) or (H, W, C), or a tensor (C, H, W) in 0..1"
        )
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]


def _of_shares(image: npt.NDArray[Any], index: int) -> npt.NDArray[np.uint8]:
    if not (np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1):
        raise DataError(
            f"image {index} has values from {image.min():.3g} to {image.max():.3g}; expected 0 to "
            "1. Remove the normalisation from the data set: hwnas normalises images itself"
        )
    pixels: npt.NDArray[np.uint8] = np.rint(image * 255).astype(np.uint8)
    return pixels


def _with_test(
    images: npt.NDArray[Any], targets: npt.NDArray[Any], names: Sequence[str] | None = None
) -> Arrays:
    """Return the four arrays of data without test images: a fifth is held out, class by class."""
    if len(images) != len(targets):
        raise DataError(f"{len(images)} images but {len(targets)} labels; each image needs one")
    labels = targets.reshape(len(targets), -1)
    strata = labels[:, 0] if labels.shape[1] == 1 and labels.dtype.kind in "iub" else None
    strata = np.zeros(len(targets), np.int64) if strata is None else strata.astype(np.int64)
    test, train = draw(strata, _TEST_FRACTION, np.random.default_rng(0), "testing")
    arrays = {"x_train": images[train], "y_train": targets[train]}
    arrays |= {"x_test": images[test], "y_test": targets[test]}
    return arrays | ({} if names is None else {"class_names": np.array(names)})
