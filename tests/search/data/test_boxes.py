"""Boxes as targets: their checks, and their changes with the image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import DataError
from hwnas.search.data.boxes import NO_BOX, check_boxes, mirrored_boxes, padded_boxes
from hwnas.search.training.augment import Augmentation

GOOD = [0.25, 0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([0.5, 0.25, 0.25, 0.75, 1], "expected left < right"),
        ([0.25, 0.25, 0.5, 0.25, 1], "expected left < right"),
        ([25, 25, 50, 75, 1], "Divide pixels by the image's width and height"),
        ([np.nan, 0.25, 0.5, 0.75, 1], "expected left < right"),
        ([0.25, 0.25, 0.5, 0.75, 0.5], r"y\[1, 0\] has the class 0.5; expected a whole"),
        ([0.25, 0.25, 0.5, 0.75, -2], "or -1 in a row without object"),
    ],
)
def test_a_wrong_box_is_refused_with_its_place(box: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_boxes(np.array([[GOOD], [box]]), "y")


def test_rows_without_object_may_hold_anything() -> None:
    boxes = check_boxes(np.array([[GOOD, [9, 9, 0, 0, NO_BOX]]]), "y")
    assert boxes.dtype == np.float32
    assert boxes[0, 0].tolist() == GOOD


def test_images_without_objects_are_padded() -> None:
    boxes = padded_boxes([[], [GOOD, GOOD]])
    assert boxes.shape == (2, 2, 5)
    assert (boxes[0, :, 4] == NO_BOX).all()
    assert padded_boxes([[], []]).shape == (2, 1, 5)


def painted(seed: int, side: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Return images with one bright rectangle each, and its box."""
    rng = np.random.default_rng(seed)
    images = np.zeros((6, side, side, 1), np.uint8)
    boxes = np.zeros((6, 1, 5), np.float32)
    for image, box in zip(images, boxes, strict=True):
        top, left = rng.integers(0, side - 8, 2)
        height, width = rng.integers(5, 9, 2)
        image[top : top + height, left : left + width] = 255
        box[0, :4] = np.array([left, top, left + width, top + height]) / side
    return images, boxes


def seen(image: np.ndarray) -> list[float]:
    """Return the box around the bright pixels, as shares."""
    rows, columns = np.nonzero(image[..., 0] > 127)
    height, width = image.shape[:2]
    return [
        columns.min() / width,
        rows.min() / height,
        (columns.max() + 1) / width,
        (rows.max() + 1) / height,
    ]


@given(
    seed=st.integers(0, 999),
    crop=st.sampled_from([0.4, 0.7, 1.0]),
    shift=st.integers(0, 3),
    flip=st.booleans(),
)
def test_boxes_stay_around_their_objects(seed: int, crop: float, shift: int, flip: bool) -> None:
    images, boxes = painted(seed)
    augmentation = Augmentation(crop=crop, shift_pixels=shift, flip=flip)
    moved, found = augmentation(images, boxes, np.random.default_rng(seed))
    assert found.shape == boxes.shape
    for image, (box,) in zip(moved, found, strict=True):
        if box[4] == NO_BOX:
            continue
        # An edge that is repeated by a shift continues an object that touches it.
        assert seen(image) == pytest.approx(box[:4].tolist(), abs=(1.5 + shift) / 24)


@given(seed=st.integers(0, 999))
def test_a_box_is_left_out_once_its_centre_is_cut_off(seed: int) -> None:
    images, boxes = painted(seed)
    moved, found = Augmentation(crop=0.2)(images, boxes, np.random.default_rng(seed))
    for image, (box,) in zip(moved, found, strict=True):
        if box[4] == NO_BOX:
            assert (image > 127).mean() < 1, "the object would fill the crop around its centre"
        else:
            left, top, right, bottom = box[:4]
            assert 0 <= left < right <= 1
            assert 0 <= top < bottom <= 1


def test_mirroring_twice_changes_nothing() -> None:
    _, boxes = painted(0)
    assert np.allclose(mirrored_boxes(mirrored_boxes(boxes)), boxes, atol=1e-6)
    assert not np.allclose(mirrored_boxes(boxes), boxes)


def test_rand_augment_moves_no_boxes() -> None:
    images, boxes = painted(0)
    augmentation = Augmentation(rand_augment=3, rand_augment_strength=1.0)
    _, found = augmentation(images, boxes, np.random.default_rng(0))
    assert np.array_equal(found, boxes)
