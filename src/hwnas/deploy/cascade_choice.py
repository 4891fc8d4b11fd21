"""Which two networks to put in a cascade, and when the small one hands over.

A cascade asks a small network first, and a big one only where the small one is unsure (Viola and
Jones, 2001; for classifiers of one run e.g. Wang et al., "IDK cascades", 2018). All is decided on
class scores of validation images; nothing here runs a network.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.cascade_runner import CONFIDENCES, confidences, unsure
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.interval import Interval, wilson_interval, wilson_lower

__all__ = ["Choice", "Known", "Pair", "Single", "Tally", "choose", "pair_tally", "single_tally"]


@dataclass(frozen=True, eq=False)
class Known:
    """A network as the choice sees it.

    Attributes:
        scores: Class scores (N, K) for the same N images as those of all others.
        cost: Of one image, in whatever unit is to be saved; positive.
    """

    scores: NDArray[Any]
    cost: float


@dataclass(frozen=True)
class Tally:
    """How often a network, or a cascade, is right.

    Attributes:
        accuracy: Share of right answers.
        n: Images.
        share: Of the images, those that the big network was asked about; 0 without one.
    """

    accuracy: float
    n: int
    share: float = 0.0

    @property
    def standard_error(self) -> float:
        """Of the accuracy, because other images would have given another."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.n)

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the accuracy."""
        return wilson_interval(self.accuracy, self.n)

    def at_least(self, margin: float) -> float:
        """The least true accuracy that is so many of its standard errors below the observed one."""
        return float(wilson_lower(self.accuracy, self.n, margin))


@dataclass(frozen=True)
class Single:
    """A network alone.

    Attributes:
        name: Of the network.
        tally: On validation images.
        cost: Of one image.
    """

    name: str
    tally: Tally
    cost: float


@dataclass(frozen=True)
class Pair:
    """A cascade.

    Attributes:
        small: Name of the network that is always asked.
        big: Name of the one that is asked where the small one is unsure.
        rule: How sure the small one is; a key of `CONFIDENCES`.
        threshold: Images of which it is less sure go on.
        tally: On validation images.
        cost: Expected, of one image.
    """

    small: str
    big: str
    rule: str
    threshold: float
    tally: Tally
    cost: float

    def __str__(self) -> str:
        return f"{self.small} -> {self.big}"


@dataclass(frozen=True)
class Choice:
    """The cheapest ways to an accuracy.

    Attributes:
        single: The cheapest network that reaches it alone, if one does.
        pair: The cheapest cascade that does.
    """

    single: Single | None
    pair: Pair | None

    @property
    def gains(self) -> bool:
        """Whether the cascade is expected to be cheaper than every single network."""
        return self.pair is not None and (self.single is None or self.pair.cost < self.single.cost)


def check_aim(target: float, margin: float) -> None:
    """Refuse an accuracy that is none, and a margin that is negative or infinite.

    Raises:
        ConfigError: Naming the one that is wrong.
    """
    if not 0 < target < 1:
        raise ConfigError(
            f"target accuracy is {target:g}; expected a share between 0 and 1, such as 0.9"
        )
    if not 0 <= margin < math.inf:
        raise ConfigError(
            f"margin is {margin:g}; expected a number of standard errors, 0 or more, such as 1"
        )


def choose(
    networks: Mapping[str, Known],
    labels: NDArray[np.integer],
    target: float,
    margin: float = 1.0,
    overhead: float = 0.0,
) -> Choice:
    """Find the cheapest network and the cheapest cascade that reach an accuracy.

    Of many thresholds and pairs the luckiest would be picked, so an accuracy counts as reached only
    with a margin; single networks have to keep the same one. The standard error is that at the
    accuracy to reach, so that networks which are always right have one, too.

    Args:
        networks: By name.
        labels: The right class of each image, (N,).
        target: Accuracy to reach, in 0..1.
        margin: In standard errors of an accuracy, at least 0 and finite.
        overhead: What deciding costs an image, in the unit of the costs.

    Raises:
        ConfigError: The target is no accuracy, or the margin is negative or infinite.
        InfeasibleError: Neither a network nor a pair reaches it; the message names the best.
    """
    check_aim(target, margin)
    singles = [Single(n, single_tally(k.scores, labels), k.cost) for n, k in networks.items()]
    pairs = [
        Pair(small, big, rule, threshold, tally, first.cost + overhead + tally.share * second.cost)
        for (small, first), (big, second) in itertools.permutations(networks.items(), 2)
        if first.cost < second.cost
        for rule in CONFIDENCES
        for threshold, tally in _best(first.scores, second.scores, labels, rule, target, margin)
    ]
    ways: list[Single | Pair] = [*singles, *pairs]
    if not any(way.tally.at_least(margin) >= target for way in ways):
        raise _infeasible(ways, target, margin)
    return Choice(
        min((s for s in singles if s.tally.at_least(margin) >= target), key=_order, default=None),
        min((p for p in pairs if p.tally.at_least(margin) >= target), key=_order, default=None),
    )


def _order(way: Single | Pair) -> tuple[float, float]:
    return way.cost, -way.tally.accuracy


def _infeasible(ways: list[Single | Pair], target: float, margin: float) -> InfeasibleError:
    best = max(ways, key=lambda way: way.tally.at_least(margin))
    tally, name = best.tally, best.name if isinstance(best, Single) else str(best)
    return InfeasibleError(
        f"neither a network nor a pair reaches accuracy {target:g} with a margin of {margin:g} "
        f"standard errors on {tally.n} validation images; the best is {name} with "
        f"{tally.accuracy:.4f}, which is {tally.at_least(margin):.4f} with that margin. Lower "
        "--target-accuracy or --margin"
    )


def single_tally(scores: NDArray[Any], labels: NDArray[np.integer]) -> Tally:
    """How often a network is right, given its scores (N, K)."""
    return Tally(float(_right(scores, labels).mean()), len(labels))


def pair_tally(
    small: NDArray[Any],
    big: NDArray[Any],
    labels: NDArray[np.integer],
    rule: str,
    threshold: float,
) -> Tally:
    """How often a cascade is right, given the scores (N, K) of both of its networks."""
    on = unsure(small, rule, threshold)
    right = np.where(on, _right(big, labels), _right(small, labels))
    return Tally(float(right.mean()), len(labels), float(on.mean()))


def _right(scores: NDArray[Any], labels: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return for which images a network is right; scores that are no numbers never are."""
    known = np.isfinite(scores.max(axis=1))
    return np.asarray((scores.argmax(axis=1) == labels) & known)


def _best(
    small: NDArray[Any],
    big: NDArray[Any],
    labels: NDArray[np.integer],
    rule: str,
    target: float,
    margin: float,
) -> Iterator[tuple[float, Tally]]:
    """The lowest threshold that reaches the target, or else the most accurate one, if there is any.

    Only those count by which some images go on and some do not. Each lies in the middle between the
    confidences of two images, away from rounding.
    """
    confidence = confidences(small, rule)
    order = np.argsort(confidence, kind="stable")
    ascending = confidence[order]
    middle = (ascending[:-1] + ascending[1:]) / 2
    apart = np.flatnonzero((ascending[:-1] < middle) & (middle < 1))
    if len(apart) == 0:
        return
    by_small, by_big = (_right(scores, labels)[order] for scores in (small, big))
    right = by_small.sum() + np.cumsum(by_big.astype(int) - by_small.astype(int))[apart]
    n = len(labels)
    safe = wilson_lower(right / n, n, margin)
    place = int((safe >= target).argmax()) if (safe >= target).any() else int(safe.argmax())
    share = float((apart[place] + 1) / n)
    # Scores that are no numbers have a confidence below 0, which no threshold is.
    yield max(0.0, float(middle[apart[place]])), Tally(float(right[place] / n), n, share)
