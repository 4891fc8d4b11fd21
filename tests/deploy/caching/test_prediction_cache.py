"""Cache of outputs: what it returns, what it keeps apart, and how large it becomes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.deploy.caching import NearRule, PredictionCache
from hwnas.errors import ConfigError

Images = NDArray[np.uint8]


class Model:
    """Function of images that records which it was given."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset, self.seen = offset, 0

    def __call__(self, images: Images) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        self.seen += len(images)
        sums = images.reshape(len(images), -1).astype(np.float32)
        return sums + np.float32(self.offset), sums[:, 0] > 1


def some(*values: int) -> Images:
    """Return one image of 1 x 2 pixels for each value."""
    return np.array(values, np.uint8)[:, None, None, None].repeat(2, axis=2)


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), max_size=10),
    st.integers(1, 7),
    st.sampled_from([1e9, 1300, 650, 10]),
)
def test_cache_returns_what_the_model_gives_and_stays_within_its_limits(
    batches: list[list[int]], entries: int, size: float
) -> None:
    cache, cached, alone = PredictionCache(size, entries), Model(), Model()
    for batch in batches:
        found = cache.through(b"model", some(*batch), cached)
        for one, other in zip(found, alone(some(*batch)), strict=True):
            assert np.array_equal(one, other)
            assert one.dtype == other.dtype
        assert cache.counts.entries <= entries
        assert cache.counts.bytes <= size
    assert cache.counts.images == alone.seen
    assert cache.counts.misses == cached.seen
    if entries == 7 and size == 1e9:
        assert cached.seen == len({value for batch in batches for value in batch})


def test_cache_keeps_models_shapes_and_types_apart() -> None:
    cache, models = PredictionCache(), [Model(), Model(100.0)]
    square, wide = some(7).reshape(1, 2, 1, 1), some(7)
    for name, model in zip((b"one", b"two"), models, strict=True):
        for images in (square, wide, square):
            assert cache.through(name, images, model)[0][0, 0] == 7 + model.offset
        assert model.seen == 2
    assert cache.counts.entries == 4


def test_cache_removes_what_was_not_used_for_the_longest_time() -> None:
    cache, model = PredictionCache(max_entries=2), Model()
    for value in (1, 2, 1, 3, 1, 2):  # 3 takes the place of 2, and 2 that of 3
        cache.through(b"model", some(value), model)
    counts = cache.counts
    assert (counts.hits, counts.misses, counts.evicted, counts.entries) == (2, 4, 2, 2)
    assert counts.hit_rate == pytest.approx(1 / 3)
    cache.clear()
    assert (cache.counts.entries, cache.counts.bytes, cache.counts.hit_rate) == (0, 0, 0.0)


def test_cache_keeps_no_answer_that_is_not_finite_and_none_that_a_caller_changes() -> None:
    cache = PredictionCache()

    def broken(images: Images) -> tuple[NDArray[np.float64]]:
        return (np.full((len(images), 2), np.nan),)

    cache.through(b"model", some(1), broken)
    assert cache.counts.entries == 0
    found, _ = cache.through(b"model", some(1), Model())
    found[:] = 9
    again, _ = cache.through(b"model", some(1), Model())
    assert again.tolist() == [[1.0, 1.0]]


def test_cache_hands_images_of_a_wrong_kind_to_the_model() -> None:
    cache, given = PredictionCache(near=NearRule(0.1, 0.1, 2, 1.0, 0.0)), []

    def refuses(images: Images) -> tuple[Images]:
        given.append(images.shape)
        raise ValueError("refused")

    for images in (some()[:0], some(1)[0], some(1).astype(np.float32)):
        with pytest.raises(ValueError, match="refused"):
            cache.through(b"model", images, refuses)
    assert len(given) == 3


def test_cache_serves_threads_at_the_same_time() -> None:
    cache, start = PredictionCache(max_entries=20), threading.Barrier(4)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(100):
            values = rng.integers(0, 40, 5)
            found, _ = cache.through(b"model", some(*values), Model())
            assert found[:, 0].tolist() == values.tolist()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    counts = cache.counts
    assert counts.images == 2000
    assert counts.entries == 20
    assert counts.hits > 0


@pytest.mark.parametrize("limits", [(0, 1), (float("nan"), 1), (float("inf"), 1), (100, 0)])
def test_cache_refuses_limits_that_are_no_sizes(limits: tuple[float, int]) -> None:
    with pytest.raises(ConfigError, match=r"of a cache is .*; expected a number from 1 on"):
        PredictionCache(*limits)
