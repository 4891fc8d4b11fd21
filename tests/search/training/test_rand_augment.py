"""RandAugment: its operations, and what they do to targets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search.data.masks import VOID
from hwnas.search.training.rand_augment import (
    _COLOUR,
    _GEOMETRIC,
    _rotated,
    _sheared_x,
    _sheared_y,
    rand_augmented,
)


def photographs(n: int, side: int, channels: int = 3) -> np.ndarray:
    """Return images of a bright square before smooth gradients, which every operation changes."""
    down, right = np.meshgrid(np.linspace(20, 200, side), np.linspace(40, 230, side))
    down[side // 4 : side // 2, side // 3 : side // 2] += 30
    planes = [down, right, (down + right) / 2][:channels]
    return np.repeat(np.stack(planes, 2).astype(np.uint8)[None], n, 0)


@given(st.floats(-1, 1), st.integers(1, 64), st.integers(1, 64))
def test_rotations_and_shears_keep_the_centre(strength: float, width: int, height: int) -> None:
    centre = np.array([width / 2, height / 2, 1])
    for operation in (_rotated, _sheared_x, _sheared_y):
        matrix = np.array(operation(strength, width, height)).reshape(2, 3)
        np.testing.assert_allclose(matrix @ centre, centre[:2], atol=1e-9)


@given(
    channels=st.sampled_from([1, 3]),
    sides=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    operations=st.integers(1, 3),
    strength=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_rand_augment_keeps_shapes_types_and_its_input(
    channels: int, sides: tuple[int, int], operations: int, strength: float, seed: int
) -> None:
    before = np.random.default_rng(1).integers(0, 256, (5, *sides, channels), dtype=np.uint8)
    kept, classes = before.copy(), np.arange(5)
    rng = np.random.default_rng(seed)
    after, same = rand_augmented(before, classes, rng, operations, strength)
    assert after.shape == before.shape
    assert after.dtype == np.uint8
    assert same is classes
    assert np.array_equal(before, kept)


def test_rand_augment_draws_all_operations_in_both_directions() -> None:
    before = photographs(3000, 24)
    after, _ = rand_augmented(before, np.arange(3000), np.random.default_rng(0), 1, 0.5)
    different = {image.tobytes() for image in after}
    # Identity, autocontrast, equalisation, posterisation and solarisation have no direction.
    assert len(different) == 5 + 2 * (len(_COLOUR) - 5 + len(_GEOMETRIC))
    assert before[0].tobytes() in different


def test_rand_augment_is_stronger_at_a_greater_strength() -> None:
    before = photographs(500, 24)
    changes = [
        np.abs(
            rand_augmented(before, np.arange(500), np.random.default_rng(0), 2, strength)[0]
            - before.astype(float)
        ).mean()
        for strength in (0.1, 0.5, 1.0)
    ]
    assert changes == sorted(changes)
    assert changes[2] > 2 * changes[0]


def test_rand_augment_moves_masks_with_their_images() -> None:
    image = np.full((40, 40, 1), 10, np.uint8)
    image[10:25, 15:35] = 240
    before = np.repeat(image[None], 400, 0)
    masks = (before[..., 0] > 100).astype(np.uint8)
    after, moved = rand_augmented(before, masks, np.random.default_rng(0), 1, 0.6)
    assert set(np.unique(moved)) == {0, 1, VOID}
    assert not np.array_equal(moved, masks)
    bright, dark = after[..., 0][moved == 1], after[..., 0][moved == 0]
    assert np.median(bright) > 200 > 100 > np.median(dark)
    filled = after[..., 0][moved == VOID]
    assert np.median(filled) == 128


def test_rand_augment_moves_no_images_with_value_targets() -> None:
    before, values = photographs(2000, 24), np.zeros((2000, 1), np.float32)
    after, same = rand_augmented(before, values, np.random.default_rng(0), 1, 0.5)
    assert same is values
    assert len({image.tobytes() for image in after}) == 5 + 2 * (len(_COLOUR) - 5)


@pytest.mark.parametrize("operation", range(len(_GEOMETRIC)))
def test_geometric_operations_without_strength_change_nothing(operation: int) -> None:
    assert _GEOMETRIC[operation](0.0, 12, 9) == pytest.approx((1, 0, 0, 0, 1, 0))
