"""Augmentation of whole batches of uint8 images, and of their masks and boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hwnas.errors import ConfigError
from hwnas.search.data.boxes import cropped_boxes, mirrored_boxes
from hwnas.search.data.image_cache import Images
from hwnas.search.data.raw_images import Targets, target_kind
from hwnas.search.training.rand_augment import rand_augmented

__all__ = ["Augmentation", "Augmenter", "cut_mixed"]

Augmenter = Callable[[Images, Targets, np.random.Generator], tuple[Images, Targets]]
"""Function that returns augmented images and targets, of the same shapes and types."""

_CROP_RATIO = 4 / 3  # largest aspect ratio of a crop, in either orientation
_ERASED_RATIO = 1 / 0.3
_ERASED_AREA = (0.02, 0.4)
_TRIES = 10  # boxes drawn for each image; the first one inside it is used


@dataclass(frozen=True)
class Augmentation:
    """Random augmentation of the images of a batch, in the order of the attributes.

    Masks, boxes and pictures are transformed geometrically with their images; other targets are
    unchanged. A box whose centre is outside of a crop is left out. Crops are not for pictures.

    Attributes:
        crop: Smallest area of a random crop, as a share of the image's, in (0, 1]; 1 for no crop.
            The area of a crop is uniform between this share and the whole image, the logarithm of
            its aspect ratio is uniform between those of 3/4 and 4/3, and its position is uniform
            (Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6). Images are
            scaled bilinearly with antialiasing, masks by nearest neighbour.
        shift_pixels: Largest shift in each direction, with edges repeated; 0 for none.
        flip: If True, each image is flipped horizontally with probability 1/2.
        rand_augment: Number of random operations of RandAugment; 0 for none. See
            `hwnas.search.training.rand_augment`.
        rand_augment_strength: Strength of each of them, in [0, 1].
        cutout: Side of a square that is erased, as a share of the image's longer side, in [0, 1]; 0
            for none. The square is filled with the mean colour of its image, and masks keep their
            classes there (DeVries and Taylor, "Improved regularization of convolutional neural
            networks with cutout", 2017). Its centre is uniform over the image, so part of it may
            lie outside.
        erasing: Share of the images, in [0, 1], in which a rectangle is filled with noise; masks
            keep their classes there (Zhong et al., "Random erasing data augmentation", AAAI 2020).
            Its area is uniform between .02 and .4 of the image's, and the logarithm of its aspect
            ratio is uniform between those of .3 and 1 / .3.
        own: Function of the user's that is applied last; None for none.
    """

    crop: float = 1.0
    shift_pixels: int = 0
    flip: bool = False
    rand_augment: int = 0
    rand_augment_strength: float = 0.3
    cutout: float = 0.0
    erasing: float = 0.0
    own: Augmenter | None = None

    def __call__(
        self,
        images: Images,
        targets: Targets,
        rng: np.random.Generator,
        size: tuple[int, int] | None = None,
    ) -> tuple[Images, Targets]:
        """Augment a batch.

        Args:
            images: (N, H, W, C) uint8.
            targets: First dimension N; masks are (N, H, W) uint8.
            rng: Source of randomness.
            size: Height and width of the crops; those of the images if None. Without crops, images
                keep their size.

        Returns:
            Images and targets; the given ones are not changed.

        Raises:
            ConfigError: The user's function returned arrays of other shapes or types.
        """
        if self.crop < 1:
            images, targets = _cropped(images, targets, rng, self.crop, size or images.shape[1:3])
        if self.shift_pixels:
            images, targets = _shifted(images, targets, rng, self.shift_pixels)
        if self.flip:
            images, targets = _mirrored(images, targets, rng)
        if self.rand_augment:
            images, targets = rand_augmented(
                images, targets, rng, self.rand_augment, self.rand_augment_strength
            )
        if side := round(self.cutout * max(images.shape[1:3])):
            images = _cut_out(images, rng, side)
        if self.erasing:
            images = _erased(images, rng, self.erasing)
        return (images, targets) if self.own is None else _own(self.own, images, targets, rng)


def _own(
    augmenter: Augmenter, images: Images, targets: Targets, rng: np.random.Generator
) -> tuple[Images, Targets]:
    """Apply the user's function, and check what it returns."""
    found = tuple(np.ascontiguousarray(each) for each in augmenter(images, targets, rng))
    given = images, targets
    wanted, made = ([(each.shape, str(each.dtype)) for each in x] for x in (given, found))
    if wanted != made:
        raise ConfigError(
            f"train.augment returned arrays of shapes and types {made}; expected {wanted}, those "
            "of the images and targets that it was given"
        )
    return found[0], found[1]


def _shifted(
    images: Images, targets: Targets, rng: np.random.Generator, most: int
) -> tuple[Images, Targets]:
    """Shift each image by up to ``most`` pixels in each direction, repeating the edges."""
    starts = rng.integers(-most, most + 1, size=(2, len(images), 1))[..., 0].T + most

    def moved(pixels: Images, factor: int = 1) -> Images:
        height, width = pixels.shape[1:3]
        side = (most * factor, most * factor)
        around = [(0, 0), side, side, *[(0, 0)] * (pixels.ndim - 3)]
        padded, found = np.pad(pixels, around, "edge"), np.empty_like(pixels)
        for image, larger, (top, left) in zip(found, padded, starts * factor, strict=True):
            image[:] = larger[top : top + height, left : left + width]
        return found

    if target_kind(targets) == "boxes":
        sides = np.broadcast_to(images.shape[1:3], (len(images), 2))
        places = np.concatenate([starts - most, sides], axis=1)
        return moved(images), cropped_boxes(targets, places, images.shape[1:3])
    if target_kind(targets) == "pictures":
        return moved(images), moved(targets, targets.shape[1] // images.shape[1])
    return moved(images), moved(targets) if target_kind(targets) == "masks" else targets


def _mirrored(images: Images, targets: Targets, rng: np.random.Generator) -> tuple[Images, Targets]:
    """Flip each image horizontally with probability 1/2."""
    chosen = rng.random(len(images)) < 0.5
    images = images.copy()
    # PyTorch flips images several times as fast as NumPy.
    images[chosen] = _nchw(images[chosen]).flip(3).permute(0, 2, 3, 1).numpy()
    if target_kind(targets) in ("masks", "pictures"):
        targets = targets.copy()
        targets[chosen] = targets[chosen, :, ::-1]
    elif target_kind(targets) == "boxes":
        targets = targets.copy()
        targets[chosen] = mirrored_boxes(targets[chosen])
    return images, targets


def cut_mixed(
    images: Images, targets: Targets, rng: np.random.Generator
) -> tuple[Images, Targets, Targets, float]:
    """Paste a box of another image of the batch into each image, and likewise for masks (CutMix).

    The box is the same for all images. Its share of the image's area is uniform, and so is its
    position (Yun et al., "CutMix: regularization strategy to train strong classifiers with
    localizable features", ICCV 2019, section 3.1 with alpha = 1). Unlike in the paper, the box lies
    entirely inside the image.

    Args:
        images: (N, H, W, C) uint8.
        targets: First dimension N; masks are (N, H, W) uint8.
        rng: Source of randomness.

    Returns:
        Images and targets, the targets of the images that the boxes come from, and the box's share
        of the area, in [0, 1]. The share is 0 for masks, which are mixed themselves.
    """
    n, height, width, _ = images.shape
    side = math.sqrt(rng.random())
    box_height, box_width = round(height * side), round(width * side)
    top, left = rng.integers(height - box_height + 1), rng.integers(width - box_width + 1)
    box = np.s_[:, top : top + box_height, left : left + box_width]
    others, share = rng.permutation(n), box_height * box_width / (height * width)
    mixed = images.copy()
    mixed[box] = images[others][box]
    if target_kind(targets) != "masks":
        return mixed, targets, targets[others], share
    masks = targets.copy()
    masks[box] = targets[others][box]
    return mixed, masks, masks, 0.0


def _cropped(
    images: Images,
    targets: Targets,
    rng: np.random.Generator,
    least_area: float,
    size: tuple[int, int],
) -> tuple[Images, Targets]:
    """Crop each image at its own random position, and scale all crops to one size."""
    places = np.stack(_places(rng, len(images), images.shape[1:3], least_area), axis=1)
    found = _resized_crops(images, places, size, "bilinear")
    if target_kind(targets) == "boxes":
        return found, cropped_boxes(targets, places, images.shape[1:3])
    if target_kind(targets) != "masks":
        return found, targets
    return found, _resized_crops(targets[..., None], places, size, "nearest-exact")[..., 0]


def _resized_crops(images: Images, places: np.ndarray, size: tuple[int, int], mode: str) -> Images:
    """Cut a box out of each image, (N, h, w, C) uint8, and scale all boxes to one size.

    PyTorch scales uint8 images in integers, far faster than in floats.

    Args:
        images: (N, h, w, C) uint8.
        places: Top, left, height and width of each box, (N, 4).
        size: Height and width of the result.
        mode: Mode of `torch.nn.functional.interpolate`.
    """
    pixels = _nchw(images)
    found = np.empty((len(images), *size, images.shape[3]), np.uint8)
    scaled = _nchw(found)
    for i, (top, left, height, width) in enumerate(places.tolist()):
        box = pixels[i : i + 1, :, top : top + height, left : left + width]
        scaled[i : i + 1] = functional.interpolate(
            box, size, mode=mode, antialias=mode == "bilinear"
        )
    return found


def _nchw(images: Images) -> Tensor:
    """Return a view of images as a tensor of shape (N, C, H, W)."""
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def _places(
    rng: np.random.Generator, n: int, image: tuple[int, ...], least_area: float
) -> tuple[np.ndarray, ...]:
    """Return tops, lefts, heights and widths of crops, (N,) each; the whole image if none fits."""
    return _boxes(rng, n, image, (least_area, 1.0), _CROP_RATIO)[1:]


def _boxes(
    rng: np.random.Generator,
    n: int,
    image: tuple[int, ...],
    areas: tuple[float, float],
    largest_ratio: float,
) -> tuple[np.ndarray, ...]:
    """Draw boxes inside images, of uniform area, logarithm of the aspect ratio, and position.

    Args:
        rng: Source of randomness.
        n: Number of boxes.
        image: Height and width of the images.
        areas: Least and largest area, as shares of the image's.
        largest_ratio: Largest aspect ratio, in either orientation.

    Returns:
        Whether one of `_TRIES` boxes fits into the image, and the first that does: top, left,
        height, width; (N,) each. Others are the whole image.
    """
    height, width = image
    area = rng.uniform(*areas, (_TRIES, n)) * (height * width)
    most = math.log(largest_ratio)
    ratio = np.exp(rng.uniform(-most, most, (_TRIES, n)))
    widths = np.maximum(1, np.rint(np.sqrt(area * ratio))).astype(int)
    heights = np.maximum(1, np.rint(np.sqrt(area / ratio))).astype(int)
    fits = (widths <= width) & (heights <= height)
    first, each = fits.argmax(0), np.arange(n)
    fitted = np.asarray(fits.any(0))
    heights = np.where(fitted, heights[first, each], height)
    widths = np.where(fitted, widths[first, each], width)
    tops, lefts = rng.integers(height - heights + 1), rng.integers(width - widths + 1)
    return fitted, tops, lefts, heights, widths


def _erased(images: Images, rng: np.random.Generator, share: float) -> Images:
    """Fill a rectangle of some images with noise."""
    images = images.copy()
    fits, *boxes = _boxes(rng, len(images), images.shape[1:3], _ERASED_AREA, _ERASED_RATIO)
    chosen = np.flatnonzero(fits & (rng.random(len(images)) < share))
    for row, (top, left, height, width) in zip(chosen, np.stack(boxes, 1)[chosen], strict=True):
        box = images[row, top : top + height, left : left + width]
        box[:] = rng.integers(256, size=box.shape, dtype=np.uint8)
    return images


def _cut_out(images: Images, rng: np.random.Generator, side: int) -> Images:
    n, height, width, _ = images.shape
    centres = rng.integers((height, width), size=(n, 2))
    inside = [
        (np.arange(size) >= start[:, None]) & (np.arange(size) < start[:, None] + side)
        for size, start in zip((height, width), (centres - side // 2).T, strict=True)
    ]
    square = (inside[0][:, :, None] & inside[1][:, None, :])[..., None]
    colour = images.mean((1, 2), keepdims=True).round().astype(np.uint8)
    return np.where(square, colour, images)
