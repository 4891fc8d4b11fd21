from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.errors import ConfigError
from hwnas.search.data.raw_images import Targets
from hwnas.search.training.augment import Augmentation, cut_mixed

Images = NDArray[np.uint8]


def augment(
    images: Images, rng: np.random.Generator, shift: int, flip: bool, cutout: float = 0.0
) -> Images:
    """Augment images with one class each; check that the classes stay the same."""
    classes = np.arange(len(images))
    augmentation = Augmentation(shift_pixels=shift, flip=flip, cutout=cutout)
    augmented, same = augmentation(images, classes, rng)
    assert same is classes
    return augmented


def images(n: int, height: int, width: int, channels: int) -> Images:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (n, height, width, channels), dtype=np.uint8)


def shifted(image: Images, dy: int, dx: int) -> Images:
    rows = (np.arange(image.shape[0]) + dy).clip(0, image.shape[0] - 1)
    columns = (np.arange(image.shape[1]) + dx).clip(0, image.shape[1] - 1)
    return image[rows][:, columns]


@given(
    shape=st.tuples(*(st.integers(1, n) for n in (5, 9, 9, 3))),
    shift=st.integers(0, 3),
    flip=st.booleans(),
    seed=st.integers(0, 99),
)
def test_augmentation_shifts_within_the_limit_and_may_mirror(
    shape: tuple[int, int, int, int], shift: int, flip: bool, seed: int
) -> None:
    before = images(*shape)
    after = augment(before, np.random.default_rng(seed), shift, flip)
    assert after.shape == before.shape
    assert after.dtype == np.uint8
    moves = range(-shift, shift + 1)
    for one, other in zip(before, after, strict=True):
        possible = [shifted(one, dy, dx) for dy in moves for dx in moves]
        possible += [image[:, ::-1] for image in possible] if flip else []
        assert any(np.array_equal(other, image) for image in possible)


def test_augmentation_draws_every_shift_and_both_directions() -> None:
    image = images(1, 8, 8, 1)
    after = augment(image.repeat(2000, 0), np.random.default_rng(0), 1, flip=True)
    assert len({one.tobytes() for one in after}) == 2 * 3 * 3


def test_augmentation_without_options_changes_nothing() -> None:
    before = images(3, 5, 5, 1)
    assert np.array_equal(augment(before, np.random.default_rng(0), 0, False), before)


def test_augmentation_does_not_change_its_input() -> None:
    before = images(20, 5, 5, 1)
    kept = before.copy()
    augment(before, np.random.default_rng(0), 2, True)
    assert np.array_equal(before, kept)


def test_augmentation_depends_only_on_the_random_generator() -> None:
    before = images(20, 5, 5, 1)
    one, other = (augment(before, np.random.default_rng(5), 2, True) for _ in range(2))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, augment(before, np.random.default_rng(6), 2, True))


@given(side=st.integers(4, 12), cutout=st.floats(0, 1), seed=st.integers(0, 99))
def test_cutout_fills_a_square_with_the_mean_colour(side: int, cutout: float, seed: int) -> None:
    before = images(6, side, side + 2, 3)
    after = augment(before, np.random.default_rng(seed), 0, False, cutout)
    largest = round(cutout * (side + 2))
    assert after.dtype == np.uint8
    for one, other in zip(before, after, strict=True):
        colour = one.mean((0, 1)).round().astype(np.uint8)
        rows, columns = np.nonzero((one != other).any(2))
        if len(rows):
            assert np.ptp(rows) < largest
            assert np.ptp(columns) < largest
            assert (
                other[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] == colour
            ).all()


def test_cutout_reaches_every_pixel() -> None:
    before = np.zeros((400, 6, 6, 1), np.uint8)
    before[:, 0, 0] = 36 * 2  # its mean is 2
    after = augment(before, np.random.default_rng(0), 0, False, 0.5)
    erased = (after == 2).mean(0)[..., 0]
    assert (erased > 0).all()
    assert erased[3, 3] > erased[0, 5] > 0, "at the edge part of the square lies outside"


@given(
    shape=st.tuples(*(st.integers(1, n) for n in (5, 9, 9))),
    shift=st.integers(0, 3),
    flip=st.booleans(),
    seed=st.integers(0, 99),
)
def test_augmentation_moves_masks_with_their_images(
    shape: tuple[int, int, int], shift: int, flip: bool, seed: int
) -> None:
    before = images(*shape, 1)
    masks = before[..., 0] // 50
    augmentation = Augmentation(shift_pixels=shift, flip=flip)
    after, moved = augmentation(before, masks, np.random.default_rng(seed))
    assert moved.dtype == np.uint8
    assert np.array_equal(moved, after[..., 0] // 50)


def test_cutout_does_not_change_masks() -> None:
    before = images(8, 6, 6, 3)
    masks = before[..., 0] % 4
    after, same = Augmentation(cutout=0.5)(before, masks, np.random.default_rng(0))
    assert not np.array_equal(after, before)
    assert np.array_equal(same, masks)


# Random crops


def gradients(n: int, height: int, width: int) -> Images:
    """Return images whose two channels are the vertical and horizontal position, 0 to 250."""
    down = np.linspace(0, 250, height).round().astype(np.uint8)
    right = np.linspace(0, 250, width).round().astype(np.uint8)
    image = np.stack(np.broadcast_arrays(down[:, None], right[None, :]), axis=2)
    return np.repeat(image[None], n, 0)


@given(
    least=st.floats(0.1, 0.99),
    size=st.tuples(st.integers(8, 40), st.integers(8, 40)),
    seed=st.integers(0, 99),
)
def test_crop_has_the_least_area_and_the_requested_size(
    least: float, size: tuple[int, int], seed: int
) -> None:
    before = gradients(4, 64, 48)
    after, _ = Augmentation(crop=least)(before, np.arange(4), np.random.default_rng(seed), size)
    assert after.shape == (4, *size, 2)
    heights = np.ptp(after[..., 0].astype(float), (1, 2)) / 250 * size[0] / (size[0] - 1)
    widths = np.ptp(after[..., 1].astype(float), (1, 2)) / 250 * size[1] / (size[1] - 1)
    grain = 0.06  # of scaling: the outermost pixels are means of those around them
    assert (heights * widths > least - 2 * grain).all()
    assert (heights < 1 + grain).all()
    assert (widths < 1 + grain).all()


def test_crop_draws_all_areas_and_places() -> None:
    before = gradients(500, 64, 64)
    after, _ = Augmentation(crop=0.25)(before, np.arange(500), np.random.default_rng(0))
    centres = after.astype(float).mean((1, 2)) / 250
    heights = np.ptp(after[..., 0].astype(float), (1, 2)) / 250
    assert heights.min() < 0.5 < 0.95 < heights.max()
    assert (centres.min(0) < 0.35).all()
    assert (centres.max(0) > 0.65).all()


def test_crop_cuts_masks_like_their_images_and_keeps_classes() -> None:
    before = gradients(20, 32, 32)
    masks = (before[..., 0] > 125).astype(np.uint8) * 200
    after, moved = Augmentation(crop=0.3, flip=True)(before, masks, np.random.default_rng(0))
    assert set(np.unique(moved)) <= {0, 200}
    surely = np.abs(after[..., 0].astype(int) - 125) > 12  # off the edge, which scaling blurs
    assert surely.mean() > 0.7
    assert np.array_equal((after[..., 0] > 125)[surely], (moved == 200)[surely])


def test_crop_leaves_a_very_narrow_image_whole() -> None:
    before = images(3, 40, 2, 1)
    after, _ = Augmentation(crop=0.9)(before, np.arange(3), np.random.default_rng(0))
    assert np.array_equal(after, before)


# Random erasing


def test_erasing_fills_one_rectangle_with_noise_in_a_share_of_the_images() -> None:
    before = np.full((2000, 20, 20, 3), 7, np.uint8)
    after, _ = Augmentation(erasing=0.3)(before, np.arange(2000), np.random.default_rng(0))
    changed = (after != before).any(3)
    assert changed.any((1, 2)).mean() == pytest.approx(0.3, abs=0.04)
    areas = []
    for image in changed[changed.any((1, 2))]:
        rows, columns = np.nonzero(image)
        areas.append((np.ptp(rows) + 1) * (np.ptp(columns) + 1) / 400)
        assert image.sum() > 0.9 * areas[-1] * 400, "noise seldom equals the image"
    assert min(areas) < 0.05
    assert 0.3 < max(areas) < 0.45
    assert np.array_equal(before, np.full_like(before, 7))


def test_erasing_keeps_masks() -> None:
    before = images(8, 16, 16, 3)
    masks = before[..., 0] % 4
    after, same = Augmentation(erasing=1.0)(before, masks, np.random.default_rng(0))
    assert (after != before).any((1, 2, 3)).all()
    assert np.array_equal(same, masks)


# A function of the user's


def inverted(images: Images, targets: Targets, rng: np.random.Generator) -> tuple[Images, Targets]:
    return (255 - images)[:, ::-1], targets


def test_own_augmentation_is_applied_last() -> None:
    before = images(6, 8, 8, 3)
    rng = np.random.default_rng(0)
    after, _ = Augmentation(flip=True, cutout=0.5, own=inverted)(before, np.arange(6), rng)
    plain = Augmentation(flip=True, cutout=0.5)(before, np.arange(6), np.random.default_rng(0))[0]
    assert np.array_equal(after, 255 - plain[:, ::-1])
    assert after.flags.c_contiguous, "PyTorch takes no reversed arrays"


def test_own_augmentation_that_changes_shapes_or_types_is_refused() -> None:
    before, rng = images(6, 8, 8, 3), np.random.default_rng(0)
    for own in (
        lambda images, targets, rng: (images[:3], targets[:3]),
        lambda images, targets, rng: (images / 255, targets),
        lambda images, targets, rng: (images,),
    ):
        with pytest.raises(
            ConfigError, match=r"train\.augment returned arrays of .*\(6, 8, 8, 3\)"
        ):
            Augmentation(own=own)(before, np.arange(6), rng)


# CutMix


@given(shape=st.tuples(*(st.integers(1, n) for n in (9, 12, 12))), seed=st.integers(0, 999))
def test_cut_mixed_pastes_a_box_of_another_image_and_returns_its_share(
    shape: tuple[int, int, int], seed: int
) -> None:
    n = shape[0]
    before = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (*shape, 1))
    classes = np.arange(n)
    after, same, others, share = cut_mixed(before, classes, np.random.default_rng(seed))
    assert same is classes
    assert sorted(others) == list(range(n))
    for image, own, other in zip(after[..., 0], classes, others, strict=True):
        assert set(np.unique(image)) <= {own, other}
        if own != other:
            assert (image == other).mean() == pytest.approx(share)
            rows, columns = np.nonzero(image == other)
            if len(rows):
                assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)


def test_cut_mixed_draws_boxes_of_all_sizes() -> None:
    before = images(2, 20, 20, 1)
    shares = [cut_mixed(before, np.arange(2), np.random.default_rng(i))[3] for i in range(300)]
    assert np.quantile(shares, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.1)


def test_cut_mixed_pastes_masks_with_their_images_and_a_share_of_zero() -> None:
    before = images(8, 16, 16, 1)
    masks = before[..., 0] // 2
    after, mixed, _, share = cut_mixed(before, masks, np.random.default_rng(3))
    assert share == 0
    assert not np.array_equal(mixed, masks)
    assert np.array_equal(mixed, after[..., 0] // 2)
