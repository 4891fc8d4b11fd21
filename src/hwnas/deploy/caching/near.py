"""Images that are nearly equal: their signatures, and the distance up to which answers are reused.

The distance is fitted on images by "Learn then Test" (Angelopoulos et al., 2021): of a few
distances fixed in advance, it is the largest for which a binomial test rejects that more than a
stated share of the reused answers differ from the model's own, corrected for the number of tests
(Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from hwnas.errors import ConfigError, InfeasibleError

__all__ = ["NearIndex", "NearRule", "fit_near", "signatures"]

Floats = NDArray[np.float32]

_SIDE = 16
_DISTANCES = 20
_AT_ONCE = 512
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class NearRule:
    """Rule that says which images are so near to each other that they get the same answer.

    Attributes:
        distance: Largest distance of two signatures: root of the mean squared difference of pixels
            that are averaged over a grid, in 0..1.
        risk: Share of the reused answers that may differ from the model's own, in 0..1.
        images: Number of images that the distance was fitted on.
        share: Share of these images that have another one within the distance.
        differing: Share of these reused answers that differ from the model's own.
    """

    distance: float
    risk: float
    images: int
    share: float
    differing: float

    def signatures(self, images: NDArray[np.uint8]) -> Floats:
        """Return the signatures of images; see `hwnas.deploy.caching.near.signatures`."""
        return signatures(images)


def signatures(images: NDArray[np.uint8]) -> Floats:
    """Return pixels averaged over a grid of 16 x 16 cells, of the same length for all sizes.

    Args:
        images: uint8 (N, H, W, C).

    Returns:
        float32 (N, 256 C), in 0..1.
    """
    _, height, width, _ = images.shape
    rows, columns = (np.arange(_SIDE) * size // _SIDE for size in (height, width))
    sums = np.add.reduceat(images.astype(np.float32), rows, axis=1)
    sums = np.add.reduceat(sums, columns, axis=2)
    heights, widths = (
        np.maximum(1, np.diff(starts, append=size))
        for starts, size in ((rows, height), (columns, width))
    )
    means = sums / (255 * heights[:, None, None] * widths[:, None])
    return np.asarray(means.reshape(len(images), -1), dtype=np.float32)


def fit_near(images: NDArray[np.uint8], answers: NDArray[np.integer], risk: float) -> NearRule:
    """Return the rule with the largest distance that keeps a risk, with 95 % confidence.

    Each image stands for a new one, and its nearest other image for the one in the cache. The
    statement holds for images like these; a stream that repeats images with small changes has
    nearer neighbours, whose answers differ less often. The confidence is approximate, since two
    images may have the same neighbour.

    Args:
        images: uint8 (N, H, W, C), which the model was not trained on.
        answers: The model's own answer to each image, such as its class, (N,).
        risk: Largest share of the reused answers that may differ from the model's own, in 0..1.

    Raises:
        ConfigError: The risk is not between 0 and 1, or there are fewer than two images.
        InfeasibleError: No distance keeps the risk.
    """
    if not 0 < risk < 1:
        raise ConfigError(f"the risk of near repeats is {risk:g}; expected a share such as 0.01")
    if len(images) < 2:
        raise ConfigError(f"{len(images)} images were given; expected at least two")
    nearest, distances = _nearest_others(signatures(images))
    differs = answers != answers[nearest]
    level = (1 - _CONFIDENCE) / _DISTANCES
    for distance in np.quantile(distances, np.linspace(1, 1 / _DISTANCES, _DISTANCES)):
        within = distances <= distance
        wrong, n = int(differs[within].sum()), int(within.sum())
        if bdtr(wrong, n, risk) <= level:
            share = n / len(images)
            return NearRule(float(distance), risk, len(images), share, wrong / n)
    raise InfeasibleError(
        f"no distance of near repeats keeps a risk of {risk:g} on {len(images)} images; give a "
        "higher risk or more images, or only reuse answers to equal images"
    )


class NearIndex:
    """Signatures of the entries of a cache for one model, searched one by one.

    Args:
        rule: Rule that says what is near.
        length: Length of the signatures.
    """

    def __init__(self, rule: NearRule, length: int) -> None:
        self._rule = rule
        self._rows = np.empty((64, length), np.float32)
        self._keys: list[bytes | None] = []
        self._places: dict[bytes, int] = {}
        self._free: list[int] = []

    def add(self, key: bytes, signature: Floats) -> None:
        """Add an entry."""
        if not self._free and len(self._keys) == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        place = self._free.pop() if self._free else len(self._keys)
        if place == len(self._keys):
            self._keys.append(key)
        self._keys[place], self._places[key], self._rows[place] = key, place, signature

    def remove(self, key: bytes) -> None:
        """Remove an entry, if it is there."""
        place = self._places.pop(key, None)
        if place is not None:
            self._keys[place], self._rows[place] = None, np.inf
            self._free.append(place)

    def nearest(self, signature: Floats) -> bytes | None:
        """Return the key of the nearest entry within the distance; None if there is none."""
        if not self._places:
            return None
        differences = self._rows[: len(self._keys)] - signature
        squares = np.einsum("ij,ij->i", differences, differences) / len(signature)
        place = int(squares.argmin())
        return self._keys[place] if squares[place] <= self._rule.distance**2 else None


def _nearest_others(rows: Floats) -> tuple[NDArray[np.integer], NDArray[np.float64]]:
    """Return the nearest other row of each row, (N,), and its distance, (N,)."""
    exact = rows.astype(np.float64)  # nearly equal rows cancel out in single precision
    nearest, distances = np.empty(len(rows), np.int64), np.empty(len(rows))
    norms = np.square(exact).sum(1)
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        squares = norms[part, None] + norms - 2 * exact[part] @ exact.T
        own = np.arange(len(squares))
        squares[own, start + own] = np.inf
        nearest[part] = squares.argmin(1)
        distances[part] = np.sqrt(np.maximum(0, squares.min(1)) / rows.shape[1])
    return nearest, distances
