"""Preprocessing of a network's input, and meaning of its outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.boxes import BOX_COLUMNS, BOX_MAPS, found_boxes
from hwnas.deploy.bundles.image_file import PILLOW_MODES, Fit, centred_box, read_pixels
from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError, ConfigError, DataError

__all__ = ["OutputMeaning", "Preprocessing", "at_size"]

SCHEMA = 1
LATER_SCHEMA = 2
"""Schema of what older versions would ignore: outputs with a scale, and cropped inputs."""
_AFFINE = ("values", "picture")
"""Kinds whose numbers have a scale and an offset."""

OutputKind = Literal[
    "class_scores", "label_scores", "pixel_class_scores", "values", "boxes", "picture",
    "next_byte_scores", "task_class_scores",
]  # fmt: skip
_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)
_PRESENT = 0.5  # least probability of a label that counts as present
_LEAST_SCORE = 0.3  # of a box that is shown
_MOST_NUMBERS = 2**28  # a gigabyte in float32
_MOST_PIXEL_CLASSES = 255  # masks are uint8, and 255 marks pixels without a class
_STEPS = {
    "stretch": "resize",
    "crop": "cut out the centre in the aspect ratio of the input, resize",
}


def at_size(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Interpolate maps (N, K, h, w) bilinearly to a height and width, unless they already fit."""
    if tuple(maps.shape[2:]) == tuple(size):
        return maps
    return functional.interpolate(maps, tuple(size), mode="bilinear", antialias=False)


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of stored pixels to a network's input: resize, scale to 0..1, normalise.

    Training, evaluation and deployment use the same object, so that they cannot differ.

    Attributes:
        height: Height of the network's input, in pixels.
        width: Width of the network's input, in pixels.
        channels: Number of channels: 1 is grey, 3 is red, green and blue.
        mean: Mean of each channel, for pixels in 0..1.
        std: Standard deviation of each channel, for pixels in 0..1; positive.
        fit: Whether images of another aspect ratio are stretched, or cropped around the centre.
    """

    height: int
    width: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "stretch"

    def __post_init__(self) -> None:
        if self.fit not in get_args(Fit):
            raise ConfigError(f"fit is {self.fit!r}; expected one of {', '.join(get_args(Fit))}")
        if min(self.height, self.width, self.channels) < 1:
            raise ConfigError(
                f"height {self.height}, width {self.width}, channels {self.channels}: "
                "each must be at least 1"
            )
        if math.prod(self.input_shape) > _MOST_NUMBERS:
            raise ConfigError(
                f"height {self.height}, width {self.width}, channels {self.channels}: "
                f"an image may have at most {_MOST_NUMBERS} values"
            )
        if not len(self.mean) == len(self.std) == self.channels:
            raise ConfigError(
                f"{len(self.mean)} means and {len(self.std)} standard deviations; "
                f"expected {self.channels} of each, one per channel"
            )
        if not all(std > 0 for std in self.std):
            raise ConfigError(f"std is {self.std}; each must be positive")

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the network's input."""
        return self.channels, self.height, self.width

    def at(self, height: int, width: int) -> Preprocessing:
        """Return the same preprocessing for another input size."""
        return replace(self, height=height, width=width)

    def __call__(self, images: Tensor | NDArray[np.uint8]) -> Tensor:
        """Preprocess a batch of images.

        Args:
            images: uint8 (N, H, W, C), of any height and width; a tensor stays on its device.

        Returns:
            float32 (N, C, height, width), channels last in memory.

        Raises:
            DataError: The images are not uint8, or do not have that shape.
        """
        batch = self._resized(images)
        mean = torch.tensor(self.mean, device=batch.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=batch.device).view(1, -1, 1, 1)
        return batch.mul_(1 / (255 * std)).sub_(mean / std)

    def pixels(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bring a batch of images to the size of the network's input, as rounded pixels.

        Args:
            images: uint8 (N, H, W, C), of any height and width.

        Returns:
            uint8 (N, height, width, C).

        Raises:
            DataError: The images are not uint8, or do not have that shape.
        """
        batch = self._resized(images).round_().clamp_(0, 255).to(torch.uint8)
        return np.ascontiguousarray(batch.permute(0, 2, 3, 1).numpy())

    def _resized(self, images: Tensor | NDArray[np.uint8]) -> Tensor:
        """Return new images (N, C, height, width) with pixels from 0 to 255, not rounded."""
        if images.ndim != 4 or images.shape[-1] != self.channels or 0 in images.shape[1:]:
            raise DataError(
                f"images have shape {tuple(images.shape)}; expected (N, H, W, {self.channels})"
            )
        if images.dtype not in (torch.uint8, np.uint8):
            raise DataError(f"images are {images.dtype}; expected uint8, pixels from 0 to 255")
        # PyTorch warns about read-only arrays, such as memory-mapped images, so these are copied.
        pixels = (
            images
            if isinstance(images, Tensor)
            else torch.from_numpy(np.require(images, requirements=["C", "W"]))
        )
        batch = pixels.permute(0, 3, 1, 2).float()
        if self.fit == "crop":
            rows, columns = centred_box(batch.shape[2:], (self.height, self.width))
            batch = batch[:, :, rows, columns]
        height, width = batch.shape[2:]
        if (height, width) == (self.height, self.width):
            return batch
        shrinks = self.height < height or self.width < width
        return functional.interpolate(
            batch, (self.height, self.width), mode="bilinear", antialias=shrinks
        )

    def read_image(
        self, source: Path | BinaryIO, size: tuple[int, int] | None = None
    ) -> NDArray[np.uint8]:
        """Read an image file, upright, with the network's number of channels.

        Args:
            source: Path of the file, or the open file.
            size: Height and width that the image will be resized to. Large JPEG files are then
                decoded at a reduced size, at least twice this one, which is faster.

        Returns:
            uint8 (H, W, channels), without ``size`` at the image's own size.

        Raises:
            DamagedImage: The file is not an image, or it is damaged.
            DataError: The file does not exist or cannot be read, its pixels have no defined range,
                or the network does not take 1, 3 or 4 channels.
        """
        if self.channels not in PILLOW_MODES:
            raise DataError(
                f"image files have 1, 3 or 4 channels, but this network takes {self.channels}; "
                "give an array instead"
            )
        return read_pixels(source, self.channels, size)

    def to_json(self) -> dict[str, Any]:
        """Return a versioned JSON object."""
        return {
            "schema": SCHEMA if self.fit == "stretch" else LATER_SCHEMA,
            "steps": f"{_STEPS[self.fit]} (bilinear, antialias when shrinking), scale to 0..1, "
            "normalise",
            **asdict(self),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing from a JSON object that `to_json` made.

        Raises:
            ArtifactError: The object is damaged or was written by a newer version.
        """
        _check_schema("preprocessing", data)
        try:
            mean, std = tuple(map(float, data["mean"])), tuple(map(float, data["std"]))
            height, width, channels = (int(data[name]) for name in ("height", "width", "channels"))
            return cls(height, width, channels, mean, std, data.get("fit", "stretch"))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"preprocessing is damaged: {first_line(error)}") from error


@dataclass(frozen=True)
class OutputMeaning:
    """Meaning of the numbers that a network outputs.

    Attributes:
        kind: ``"class_scores"``: one logit per class, of which exactly one is correct.
            ``"label_scores"``: one logit per label, of which any number may be correct.
            ``"pixel_class_scores"``: class scores of each pixel. ``"values"``: the numbers are the
            result, times `scale` plus `offset`. ``"boxes"``: maps of scores for each class and of
            four numbers of a box; see `hwnas.deploy.boxes.found_boxes`. ``"picture"``: pixels of a
            picture, which are in 0..1 times `scale` plus `offset`. ``"next_byte_scores"``: scores
            of the byte that follows each byte of a window. ``"task_class_scores"``: class scores of
            several tasks side by side.
        labels: Name of each number, in order; empty for pictures, and may be for values.
        scale: Factor of each value, or of each channel of a picture, (K,); empty for 1.
        offset: Sum that is added to each of them, (K,); empty for 0.
        tasks: Name and number of classes of each task, in the order of the labels; empty unless
            there are several tasks.
    """

    kind: OutputKind
    labels: tuple[str, ...] = ()
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()
    tasks: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        scales = {len(given) for given in (self.scale, self.offset, self.labels) if given}
        if (self.scale or self.offset) and (self.kind not in _AFFINE or len(scales) > 1):
            raise ConfigError(
                f"scale has {len(self.scale)} numbers and offset {len(self.offset)} for "
                f"{len(self.labels)} labels of {self.kind}; expected one for each of the values"
            )
        if self.kind not in _KINDS:
            raise ConfigError(f"kind is {self.kind!r}; expected one of {', '.join(_KINDS)}")
        self._check_tasks()
        least, said = (1, "one label") if self.kind == "boxes" else (2, "two labels")
        if self.kind not in _AFFINE and len(self.labels) < least:
            raise ConfigError(f"{self.kind} need {said} or more; given: {self.labels}")
        if self.kind == "pixel_class_scores" and len(self.labels) > _MOST_PIXEL_CLASSES:
            raise ConfigError(
                f"{len(self.labels)} pixel classes; a mask can have at most {_MOST_PIXEL_CLASSES}"
            )

    def _check_tasks(self) -> None:
        several = self.kind == "task_class_scores"
        names, counts = [name for name, _ in self.tasks], [count for _, count in self.tasks]
        fit = not several or (min(counts, default=0) >= 1 and sum(counts) == len(self.labels))
        if several != bool(self.tasks) or not fit or len(set(names)) < len(names):
            raise ConfigError(
                f"tasks are {list(self.tasks)} for {len(self.labels)} labels of {self.kind}; "
                "expected the number of classes of each task, for task_class_scores only"
            )

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether outputs of this shape, with the batch, can have this meaning."""
        dimensions = 4 if self.is_map else 2
        count = self._count or shape[1]
        return len(shape) == dimensions and shape[1] == count and 0 not in shape

    @property
    def is_map(self) -> bool:
        """True if an image gives maps (K, h, w), False if it gives a vector (K,)."""
        return self.kind in ("pixel_class_scores", "boxes", "picture", "next_byte_scores")

    @property
    def shape(self) -> str:
        """Shape of the outputs as text, for messages."""
        return f"(N, {self._count or 'K'}{', H, W' if self.is_map else ''})"

    @property
    def _count(self) -> int:
        """Length of the outputs' second dimension; 0 if it may have any."""
        labels = len(self.labels or self.scale or self.offset)
        return labels + BOX_MAPS if self.kind == "boxes" else labels

    def describe(self, outputs: Tensor | NDArray[Any]) -> list[dict[str, Any]]:
        """Convert a network's outputs to labelled results.

        Args:
            outputs: (N, K), one row per image, or maps (N, K, h, w).

        Returns:
            One object per image. For class scores: ``label``, ``probability`` (by softmax, in 0..1)
            and ``top``, the five most probable labels with their probabilities. For label scores:
            ``present``, the labels with a probability of at least a half, and ``probabilities`` by
            label (by the logistic function). For class scores of
            pixels: ``shares``, the share of the pixels by label. For values: ``values``, by label
            if there are labels. For boxes: ``boxes``, those with a score of at least .3, each with
            ``label``, ``score`` in 0..1, and ``left``, ``top``, ``right`` and ``bottom`` as shares
            of the image's width and height. For pictures: ``height`` and ``width`` in pixels; the
            pixels are those of `pictures`. For scores of the next byte: as for class scores, of
            the byte after the last one. For class scores of tasks: ``tasks``, as for class scores
            for each task, by its name.

        Raises:
            DataError: The outputs do not have one column, or map, per label.
            ArtifactError: The outputs of an image are NaN or infinite, so they have no meaning.
        """
        rows = np.asarray(torch.as_tensor(outputs).detach().cpu(), dtype=np.float64)
        self._check(rows.shape)
        self._check_numbers(rows)
        describe = {
            "class_scores": self._class_scores,
            "label_scores": self._label_scores,
            "pixel_class_scores": self._shares,
            "values": self._values,
            "boxes": self._boxes,
            "picture": self._size,
            "next_byte_scores": self._next_byte,
            "task_class_scores": self._task_scores,
        }[self.kind]
        return [describe(row) for row in rows]

    def masks(
        self, outputs: Tensor | NDArray[Any], size: tuple[int, int] | None = None
    ) -> NDArray[np.uint8]:
        """Return the most probable class of each pixel.

        Args:
            outputs: Class scores of pixels, (N, K, h, w).
            size: Height and width to which the scores are interpolated; their own if None.

        Returns:
            uint8 (N, height, width), indices into `labels`.

        Raises:
            DataError: The outputs are not class scores of pixels.
            ArtifactError: The outputs of an image are NaN or infinite.
        """
        maps = torch.as_tensor(outputs).detach().cpu().float()
        if self.kind != "pixel_class_scores":
            raise DataError(f"the network gives {self.kind} of whole images, so it makes no masks")
        self._check(tuple(maps.shape))
        self._check_numbers(maps.numpy())
        found: NDArray[np.uint8] = at_size(maps, size or maps.shape[2:]).argmax(1).byte().numpy()
        return found

    def pictures(self, outputs: Tensor | NDArray[Any]) -> NDArray[np.uint8]:
        """Return the pixels of the pictures that outputs stand for.

        Args:
            outputs: (N, C, H, W).

        Returns:
            uint8 (N, H, W, C), rounded, and clipped to 0..255.

        Raises:
            DataError: The outputs are not pictures.
            ArtifactError: The outputs of an image are NaN or infinite.
        """
        maps = torch.as_tensor(outputs).detach().cpu().numpy()
        if self.kind != "picture":
            raise DataError(f"the network gives {self.kind}, so it makes no pictures")
        self._check(maps.shape)
        self._check_numbers(maps)
        scale, offset = np.array(self.scale or 1.0), np.array(self.offset or 0.0)
        pixels = maps.transpose(0, 2, 3, 1) * scale + offset
        rounded: NDArray[np.uint8] = (pixels * 255).round().clip(0, 255).astype(np.uint8)
        return rounded

    def _check(self, shape: tuple[int, ...]) -> None:
        if not self.fits(shape):
            raise DataError(f"outputs have shape {shape}; expected {self.shape}")

    def _check_numbers(self, rows: NDArray[Any]) -> None:
        """Raise an error if an image has no result; a class score of minus infinity is allowed."""
        every = self.kind in ("label_scores", "values", "boxes", "picture", "task_class_scores")
        looked_at = rows if every else rows.max(axis=1)
        wrong = ~np.isfinite(looked_at).reshape(len(rows), -1).all(axis=1)
        if wrong.any():
            raise ArtifactError(
                f"the network's outputs for image {int(wrong.argmax()) + 1} of {len(rows)} are NaN "
                "or infinite, so there is no prediction; check the image, and the network with "
                "`hwnas verify`"
            )

    def _shares(self, maps: NDArray[np.float64]) -> dict[str, Any]:
        counts = np.bincount(maps.argmax(axis=0).reshape(-1), minlength=len(self.labels))
        shares = counts / counts.sum()
        return {"shares": dict(zip(self.labels, shares.tolist(), strict=True))}

    def _class_scores(self, row: NDArray[np.float64]) -> dict[str, Any]:
        return _most_probable(row, self.labels)

    def _task_scores(self, row: NDArray[np.float64]) -> dict[str, Any]:
        found, start = {}, 0
        for name, count in self.tasks:
            own = slice(start, start + count)
            found[name] = _most_probable(row[own], self.labels[own])
            start += count
        return {"tasks": found}

    def _next_byte(self, maps: NDArray[np.float64]) -> dict[str, Any]:
        return self._class_scores(maps[:, 0, -1])

    def _label_scores(self, row: NDArray[np.float64]) -> dict[str, Any]:
        with np.errstate(over="ignore"):
            probabilities = (1 / (1 + np.exp(-row))).tolist()
        named = dict(zip(self.labels, probabilities, strict=True))
        present = [label for label, probability in named.items() if probability >= _PRESENT]
        return {"present": present, "probabilities": named}

    def _values(self, row: NDArray[np.float64]) -> dict[str, Any]:
        scale, offset = np.array(self.scale or 1.0), np.array(self.offset or 0.0)
        values = (row * scale + offset).tolist()
        return {"values": dict(zip(self.labels, values, strict=True)) if self.labels else values}

    def _boxes(self, maps: NDArray[np.float64]) -> dict[str, Any]:
        shown = []
        for row in found_boxes(maps[None])[0].tolist():
            box = dict(zip(BOX_COLUMNS, row, strict=True))
            if box["score"] >= _LEAST_SCORE:
                label = self.labels[int(box.pop("class"))]
                shown.append({"label": label, "score": box.pop("score"), **box})
        return {"boxes": shown}

    def _size(self, maps: NDArray[np.float64]) -> dict[str, Any]:
        return {"height": maps.shape[1], "width": maps.shape[2]}

    def to_json(self) -> dict[str, Any]:
        """Return a versioned JSON object."""
        affine = {"scale": list(self.scale), "offset": list(self.offset)}
        return {
            "schema": SCHEMA if not (self.scale or self.offset) else LATER_SCHEMA,
            "kind": self.kind,
            "labels": list(self.labels),
            **{name: numbers for name, numbers in affine.items() if numbers},
            **({"tasks": [list(task) for task in self.tasks]} if self.tasks else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OutputMeaning:
        """Return the meaning from a JSON object that `to_json` made.

        Raises:
            ArtifactError: The object is damaged or was written by a newer version.
        """
        _check_schema("outputs", data)
        try:
            scale, offset = (tuple(map(float, data.get(name, ()))) for name in ("scale", "offset"))
            tasks = tuple((str(name), int(count)) for name, count in data.get("tasks", ()))
            return cls(data["kind"], tuple(map(str, data["labels"])), scale, offset, tasks)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"the meaning of the outputs is damaged: {first_line(error)}"
            ) from error


def _most_probable(row: NDArray[np.float64], labels: Sequence[str]) -> dict[str, Any]:
    """Return the most probable class, and the five most probable ones, from class scores (K,)."""
    odds = np.exp(row - row.max())
    probabilities = odds / odds.sum()
    top = [
        {"label": labels[i], "probability": float(probabilities[i])}
        for i in np.argsort(-probabilities, kind="stable")[:5]
    ]
    return {**top[0], "top": top}


def _check_schema(what: str, data: Any) -> None:
    if not isinstance(data, Mapping) or data.get("schema") not in (SCHEMA, LATER_SCHEMA):
        found = data.get("schema") if isinstance(data, Mapping) else data
        raise ArtifactError(
            f"{what}: schema {found!r} is not {SCHEMA}; use the hwnas version that wrote it"
        )
