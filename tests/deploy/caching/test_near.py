"""Near repeats: signatures, the fitted distance, and the cache that uses them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.deploy.caching import NearRule, PredictionCache, fit_near, signatures
from hwnas.errors import ConfigError, InfeasibleError

RULE = NearRule(0.02, 0.05, 100, 0.5, 0.01)


def grey(*levels: int, size: tuple[int, int] = (20, 30)) -> NDArray[np.uint8]:
    return np.stack([np.full((*size, 1), level, np.uint8) for level in levels])


def given_back(images: NDArray[np.uint8]) -> tuple[NDArray[np.float64]]:
    return (images[:, :1, 0, 0].astype(np.float64),)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (16, 16), (17, 40), (224, 224)])
def test_signatures_average_pixels_at_every_size(size: tuple[int, int]) -> None:
    found = signatures(grey(0, 51, 255, size=size))
    assert found.shape == (3, 256)
    np.testing.assert_allclose(found, np.array([[0, 0.2, 1]]).T.repeat(256, 1), atol=1e-6)
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, 32, 48, 3)).astype(np.uint8)
    cells = image.reshape(16, 2, 16, 3, 3).mean((1, 3)) / 255
    np.testing.assert_allclose(signatures(image)[0], cells.reshape(-1), atol=1e-6)


def test_cache_reuses_answers_to_near_images_of_one_model_only() -> None:
    cache = PredictionCache(near=RULE)
    assert cache.through(b"one", grey(100), given_back)[0].tolist() == [[100.0]]
    near, far = cache.through(b"one", grey(103, 120), given_back)[0].tolist()
    assert (near, far) == ([100.0], [120.0])
    assert cache.through(b"two", grey(101), given_back)[0].tolist() == [[101.0]]
    # A reused answer is not a new entry, so answers do not drift from image to image.
    assert cache.through(b"one", grey(106), given_back)[0].tolist() == [[106.0]]
    counts = cache.counts
    assert (counts.hits, counts.near_hits, counts.misses, counts.entries) == (0, 1, 4, 4)


def test_cache_forgets_near_images_with_their_entries() -> None:
    cache = PredictionCache(max_entries=100, near=RULE)
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (300, 16, 16, 1)).astype(np.uint8)
    cache.through(b"model", noise, given_back)
    assert cache.counts.entries == 100
    for place, known in ((250, 1), (100, 0)):
        before = cache.counts.near_hits
        changed = np.minimum(noise[place : place + 1], 254) + np.uint8(1)
        cache.through(b"model", changed, given_back)
        assert cache.counts.near_hits - before == known


def test_fitted_distance_keeps_the_risk_on_new_images() -> None:
    """Answers that change with the brightness differ more often at a greater distance."""

    def draw(seed: int, n: int = 1500) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        rng = np.random.default_rng(seed)
        levels = rng.integers(0, 256, (n, 3)).astype(np.uint8)
        images = np.repeat(np.repeat(levels[:, None, None, :], 4, 1), 4, 2)
        return images, (levels // 64).astype(np.int64) @ np.array([1, 4, 16])

    images, answers = draw(0)
    rules = [fit_near(images, answers, risk) for risk in (0.18, 0.25)]
    assert 0 < rules[0].distance < rules[1].distance
    others, expected = draw(1)
    for rule in rules:
        cache = PredictionCache(near=rule)
        cache.through(b"model", images, lambda some: (answers[: len(some)],))
        unknown: list[int] = []
        for image, answer in zip(others, expected, strict=True):
            [[found]] = cache.through(b"model", image[None], lambda some, a=answer: (a[None],))
            unknown.append(int(found != answer))
        assert sum(unknown) <= rule.risk * max(1, cache.counts.near_hits)
        assert cache.counts.near_hits > 0


def test_fit_near_refuses_risks_that_it_cannot_keep() -> None:
    images = grey(*range(0, 250, 5))
    answers = np.arange(len(images)) % 2
    with pytest.raises(InfeasibleError, match=r"no distance .* risk of 0\.01 on 50 images"):
        fit_near(images, answers, 0.01)
    with pytest.raises(ConfigError, match="risk of near repeats is 2"):
        fit_near(images, answers, 2)
    with pytest.raises(ConfigError, match="1 images were given"):
        fit_near(images[:1], answers[:1], 0.1)
