from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.search.training.augment import augment

Images = NDArray[np.uint8]


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
def test_each_image_is_shifted_by_at_most_so_much_and_perhaps_mirrored(
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


def test_every_shift_and_both_directions_happen() -> None:
    image = images(1, 8, 8, 1)
    after = augment(image.repeat(2000, 0), np.random.default_rng(0), 1, flip=True)
    assert len({one.tobytes() for one in after}) == 2 * 3 * 3


def test_without_shift_and_mirror_images_stay_as_they_are() -> None:
    before = images(3, 5, 5, 1)
    assert np.array_equal(augment(before, np.random.default_rng(0), 0, False), before)


def test_the_given_images_are_not_touched() -> None:
    before = images(20, 5, 5, 1)
    kept = before.copy()
    augment(before, np.random.default_rng(0), 2, True)
    assert np.array_equal(before, kept)


def test_the_same_generator_gives_the_same() -> None:
    before = images(20, 5, 5, 1)
    one, other = (augment(before, np.random.default_rng(5), 2, True) for _ in range(2))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, augment(before, np.random.default_rng(6), 2, True))
