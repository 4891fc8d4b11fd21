from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import DataError
from hwnas.search.data.split import Split, draw, draw_groups

IMAGES = np.arange(10 * 4 * 4 * 3, dtype=np.uint8).reshape(10, 4, 4, 3)


def split(images: np.ndarray = IMAGES, rows: tuple[int, ...] = (7, 2, 5)) -> Split:
    positions = np.array(rows, dtype=np.int64)
    return Split(images, np.arange(len(images)) * 10, positions)


@given(
    st.lists(st.integers(0, 4), min_size=12, max_size=200),
    st.floats(0.05, 0.6),
    st.integers(0, 2**32 - 1),
)
def test_draw_divides_every_class_evenly(labels: list[int], fraction: float, seed: int) -> None:
    targets = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    free = len(targets) - len(np.unique(targets))
    if min(round(fraction * len(targets)), free) == 0:
        return
    drawn, rest = draw(targets, fraction, np.random.default_rng(seed), "validation")
    assert sorted([*drawn, *rest]) == list(range(len(targets)))
    assert len(drawn) == min(round(fraction * len(targets)), free)
    counts, taken = np.bincount(targets), np.bincount(targets[drawn], minlength=targets.max() + 1)
    assert set(targets[rest]) == set(targets)
    assert np.abs(taken - len(drawn) / free * (counts - 1)).max() <= 1 + 1e-9


def test_draw_depends_on_the_seed() -> None:
    targets = np.arange(100) % 4
    one, same, other = (draw(targets, 0.2, np.random.default_rng(s), "test")[0] for s in (0, 0, 1))
    assert one.tolist() == same.tolist()
    assert sorted(one) != sorted(other)


def test_draw_of_one_class_is_random() -> None:
    drawn, rest = draw(np.zeros(50, np.int64), 0.2, np.random.default_rng(0), "test")
    assert (len(drawn), len(rest)) == (10, 40)
    assert drawn.tolist() != sorted(drawn)


def test_draw_refuses_too_few_images() -> None:
    with pytest.raises(
        DataError, match=r"4 images are too few to take a fraction of 0.1 for valid"
    ):
        draw(np.array([0, 0, 1, 1]), 0.1, np.random.default_rng(0), "validation")


@given(
    sizes=st.lists(st.integers(1, 6), min_size=12, max_size=30),
    fraction=st.floats(0.1, 0.4),
    seed=st.integers(0, 99),
)
def test_draw_groups_divides_no_group_and_leaves_every_class(
    sizes: list[int], fraction: float, seed: int
) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    classes = groups % 3
    rng = np.random.default_rng(seed)
    drawn, others = draw_groups(classes, groups, fraction, rng, "validation")
    assert sorted([*drawn, *others]) == list(range(len(groups)))
    assert not set(groups[drawn]) & set(groups[others])
    assert set(classes[others]) == {0, 1, 2}
    assert len(drawn) == pytest.approx(fraction * len(groups), abs=3 * max(sizes))


def test_draw_groups_refuses_groups_that_are_too_large() -> None:
    with pytest.raises(DataError, match="the 2 groups of images are too few, or too large"):
        draw_groups(
            np.zeros(20, int), np.arange(20) % 2, 0.1, np.random.default_rng(0), "validation"
        )


def test_take_returns_copies_of_the_requested_rows() -> None:
    part = split()
    images, targets = part.take([2, 0])
    assert targets.tolist() == [50, 70]
    np.testing.assert_array_equal(images, IMAGES[[5, 7]])
    images[:] = 0
    assert part.take([2])[0].any()


def sorted_by_class() -> Split:
    """Return 1,000 images of ten classes, sorted by class as in a folder."""
    images = np.zeros((1000, 2, 2, 1), np.uint8)
    return Split(images, np.arange(1000) // 100, np.arange(1000))


def test_first_takes_images_of_all_classes_from_a_sorted_split() -> None:
    counts = np.bincount(sorted_by_class().first(100).targets, minlength=10)
    assert counts.min() >= 4
    assert counts.max() <= 20


def test_first_is_deterministic_and_nested() -> None:
    few, more = (sorted_by_class().first(n).positions.tolist() for n in (100, 200))
    assert set(few) < set(more)
    assert len(set(more)) == 200
    assert few == sorted_by_class().first(100).positions.tolist()


def test_first_takes_at_most_all_images() -> None:
    assert sorted(split().first(99).positions) == [2, 5, 7]
    assert len(split().first(2)) == 2


@pytest.mark.parametrize("start", [0, 50], ids=["whole", "view"])
def test_split_pickles_mapped_images_as_a_path(tmp_path: Path, start: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 32, 32), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")[start:, ..., np.newaxis]
    part = split(mapped)
    data = pickle.dumps(part)
    assert len(data) < images.nbytes / 50
    again = pickle.loads(data)
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(again.take([0, 1, 2])[0], part.take([0, 1, 2])[0])
    assert isinstance(pickle.loads(pickle.dumps(again)).images, np.memmap)


def test_split_pickles_mapped_masks_as_a_path(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "masks.npy", images[..., 0] % 3)
    mapped = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("images", "masks"))
    part = Split(*mapped, np.array([7, 2, 150]))
    data = pickle.dumps(part)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert isinstance(again.image_targets, np.memmap)
    assert again.kind == "masks"
    np.testing.assert_array_equal(again.take([1, 2])[1], images[[2, 150], ..., 0] % 3)
    np.testing.assert_array_equal(again.targets, part.targets)


def test_split_pickles_images_in_memory_whole() -> None:
    again = pickle.loads(pickle.dumps(split()))
    np.testing.assert_array_equal(again.images, IMAGES)
    assert again.targets.tolist() == [70, 20, 50]


def test_unpickling_a_split_names_a_missing_mapped_file(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    data = pickle.dumps(split(np.load(tmp_path / "images.npy", mmap_mode="r")))
    (tmp_path / "images.npy").unlink()
    with pytest.raises(DataError, match=r"images\.npy cannot be opened .* every machine"):
        pickle.loads(data)


@pytest.mark.parametrize(
    ("images", "targets", "positions", "message"),
    [
        (IMAGES[..., 0], np.arange(10), np.arange(2), r"\(10, 4, 4\); expected \(N, H, W, C\)"),
        (IMAGES / 255, np.arange(10), np.arange(2), "images is float64; expected uint8"),
        (IMAGES, np.arange(10.0), np.arange(2), r"targets are float64 with shape \(10,\)"),
        (IMAGES, np.arange(2), np.arange(2), "10 images but 2 targets; each image needs one"),
        (IMAGES, np.arange(10), np.arange(0), "at least one"),
        (IMAGES, np.arange(10), np.array([3, 10]), "range of the 10 images"),
        (IMAGES, np.arange(10), np.array([-1, 0]), "range of the 10 images"),
        (IMAGES, IMAGES[:, :2, :, 0], np.arange(2), "masks of 2 x 4 pixels for images of 4 x 4"),
    ],
)
def test_split_refuses_inconsistent_arrays(
    images: np.ndarray, targets: np.ndarray, positions: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Split(images, targets, positions)
