"""Stratified sampling over cost, for searches that train a few candidates from scratch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.registry import Plugin
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import random_start
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.space.precision import FORMAT_CHOICE
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "Stratified"]

_DRAWN = 4000
_NEAREST = 0.25  # share of a stratum's networks, by distance from its middle
_UNEVEN = 0.2  # standard deviation of a choice's level in 0..1 about the scale of the network


class Stratified(BatchSampler):
    """Sampler that divides the range of the first known cost into strata, one network from each.

    The middles of the strata are evenly spaced in the logarithm of the cost. Networks are drawn
    near those that are scaled evenly, with every width and depth at about the same level of its
    options (compound scaling: Tan & Le, ICML 2019): a network that is narrow in one stage and wide
    in the next is seldom good. From the networks near its middle, every other stratum takes the
    most evenly scaled one; the remaining strata take a random one of the more evenly scaled half.
    The sampler does not learn from evaluations, so a search is one batch. If candidates name their
    number formats, each network is proposed in all formats: once in the largest, in the order of
    the costs there, and then in the others, since their evaluations need the trained weights.

    Args:
        seed: Seed of the random numbers.
        batch: Number of candidates that are evaluated together.
        features: Description of the space; made from a study's trials if None.
        most_macs: Limit on multiply-accumulates; larger networks are left out, since the planned
            training is too short for them. None for no limit. It has no effect if the space cannot
            count multiply-accumulates.
        range: Ratio of the highest cost to the lowest, above 1; cheaper networks are left out.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        most_macs: float | None = None,
        range: float = 16.0,
    ) -> None:
        super().__init__(seed, batch, features)
        if most_macs is not None and not most_macs > 0:
            raise ConfigError(f"most_macs is {most_macs}; expected a number above 0")
        if not range > 1:
            raise ConfigError(f"range is {range}; expected a number above 1")
        self.most_macs, self.range = most_macs, range

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        formats = len(features.options.get(FORMAT_CHOICE, ("",)))
        networks = self._networks(features, history, -(-count // formats), rng)
        return np.concatenate(_in_formats(features, networks))[:count]

    def _networks(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """Return the networks of the strata, all in the largest number format."""
        drawn = _nearly_even(features, history, rng)
        if len(drawn) < count:
            drawn = _in_formats(features, random_start(features, history, _DRAWN, rng))[0]
            drawn = history.unseen(np.unique(drawn, axis=0))
        if self.most_macs is not None and features.macs is not None and len(drawn):
            small = features.macs(drawn) <= self.most_macs
            drawn = drawn[small] if small.any() else drawn[[np.argmin(features.macs(drawn))]]
        predicted = features.predict(drawn)
        if len(drawn) <= count or not predicted:
            return rng.permutation(drawn)[:count]
        costs = np.log(np.maximum(next(iter(predicted.values())).values, np.finfo(float).tiny))
        kept = costs >= costs.max() - np.log(self.range)
        rows = _one_of_each(costs[kept], _unevenness(features, drawn[kept]), count, rng)
        found: Codes = drawn[kept][rows]
        return found


def _nearly_even(features: SpaceFeatures, history: History, rng: np.random.Generator) -> Codes:
    """Draw new, allowed, nearly evenly scaled networks of every scale; none if rows are listed."""
    if features.rows is not None:
        return np.empty((0, len(features.sizes)), dtype=np.int64)
    scales = rng.uniform(-_UNEVEN, 1 + _UNEVEN, (_DRAWN, 1))
    places = np.clip(rng.normal(scales, _UNEVEN, (_DRAWN, len(features.sizes))), 0, 1)
    drawn = np.rint(places * (features.sizes - 1)).astype(np.int64)
    kinds = ~_scalable(features)
    drawn[:, kinds] = rng.integers(features.sizes[kinds], size=(_DRAWN, kinds.sum()))
    codes = _in_formats(features, features.canonical(drawn))[0]
    codes = history.unseen(np.unique(codes, axis=0))
    allowed = [features.allowed(each) for each in _in_formats(features, codes)]
    return codes[np.any(allowed, axis=0)]


def _in_formats(features: SpaceFeatures, codes: Codes) -> list[Codes]:
    """Return networks in each number format, the largest first, or as they are if they have none.

    Args:
        features: Description of the space.
        codes: Codes of the networks, (N, P); the format that they name does not count.
    """
    names = list(features.options)
    if FORMAT_CHOICE not in names:
        return [codes]
    place, found = names.index(FORMAT_CHOICE), []
    for number in reversed(range(int(features.sizes[place]))):
        found.append(codes.copy())
        found[-1][:, place] = number
    return found


def _unevenness(features: SpaceFeatures, codes: Codes) -> npt.NDArray[np.float64]:
    """Return the standard deviation of the levels of each network's scalable choices, (N,)."""
    counting = _scalable(features) & features.effective(codes)
    found = np.ma.masked_array(features.levels(codes), ~counting).std(1)
    return np.asarray(found.filled(0.0), dtype=np.float64)


def _scalable(features: SpaceFeatures) -> npt.NDArray[np.bool_]:
    """Return a mask of the positions whose options are numbers and therefore ordered, (P,)."""
    options = features.options.values()
    return np.array([all(isinstance(o, int | float) for o in each) for each in options], bool)


def _one_of_each(
    costs: npt.NDArray[np.float64],
    unevenness: npt.NDArray[np.float64],
    count: int,
    rng: np.random.Generator,
) -> list[int]:
    """Pick the row of one network per stratum, and of a random network for each empty stratum.

    The middles of the strata divide the range evenly, from its lower end to its upper end. Only the
    networks nearest to the middle of a stratum are candidates, so that the picked costs are evenly
    spaced. Rows are in order of falling cost: the most expensive network trains longest, and if it
    started last, the other cores would wait for it.

    Args:
        costs: Logarithms of the costs, (N,).
        unevenness: Result of `_unevenness` for the networks, (N,); every other stratum takes the
            network with its smallest value.
        count: Number of strata.
        rng: Source of randomness.
    """
    middles = np.linspace(costs.min(), costs.max(), count)
    strata = np.searchsorted((middles[1:] + middles[:-1]) / 2, costs, side="right")
    off = np.abs(costs - middles[strata])
    picked: list[int] = []
    for number in range(count):
        rows = np.flatnonzero(strata == number)
        if len(rows):
            rows = rows[off[rows] <= np.quantile(off[rows], _NEAREST)]
            share = 0.0 if number % 2 == 0 else 0.5
            able = rows[unevenness[rows] <= np.quantile(unevenness[rows], share)]
            picked.append(int(rng.choice(able)))
    left = np.setdiff1d(np.arange(len(costs)), picked)
    missing = min(count - len(picked), len(left))
    picked += rng.permutation(left)[:missing].tolist()
    return sorted(picked, key=lambda row: -costs[row])


PLUGINS = (
    Plugin(
        "sampler",
        "stratified",
        Stratified,
        "Random networks, evenly spread over the first known cost",
    ),
)
