"""Choice of the two networks of a cascade, and of the threshold between them.

A cascade runs a small network first, and a big one only where the small one is unsure (Viola and
Jones, CVPR 2001; for neural networks e.g. Wang et al., "IDK Cascades", UAI 2018). The choice uses
only class scores of validation images; nothing here runs a network.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.cascades.curve import NetworkOutcomes, correct, threshold_curve
from hwnas.deploy.cascades.runner import CONFIDENCES, unsure
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.interval import Interval, wilson_interval, wilson_lower

__all__ = [
    "AccuracyCount",
    "CandidateScores",
    "CascadeChoice",
    "Pair",
    "SingleNetwork",
    "best_pairs",
    "check_aim",
    "choose",
    "pair_tally",
    "single_tally",
]


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """Class scores and cost of a candidate network.

    Attributes:
        scores: Class scores (N, K), on the same N images as those of all other candidates.
        cost: Cost of one image, in the unit that is to be saved; positive.
    """

    scores: NDArray[Any]
    cost: float


@dataclass(frozen=True)
class AccuracyCount:
    """Accuracy of a network, or of a cascade.

    Attributes:
        accuracy: Share of correct predictions.
        n: Number of images.
        share: Share of the images on which the big network ran; 0 without a big network.
    """

    accuracy: float
    n: int
    share: float = 0.0

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy, due to the choice of images."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.n)

    @property
    def interval(self) -> Interval:
        """95 % confidence interval of the accuracy."""
        return wilson_interval(self.accuracy, self.n)

    def at_least(self, margin: float) -> float:
        """Return the lower Wilson bound of the accuracy, ``margin`` standard errors below it."""
        return float(wilson_lower(self.accuracy, self.n, margin))


@dataclass(frozen=True)
class SingleNetwork:
    """Network that is used alone.

    Attributes:
        name: Name of the network.
        tally: Accuracy on validation images.
        cost: Cost of one image.
    """

    name: str
    tally: AccuracyCount
    cost: float


@dataclass(frozen=True)
class Pair:
    """Cascade of two networks.

    Attributes:
        small: Name of the network that runs on every image.
        big: Name of the network that runs where the small one is unsure.
        rule: Confidence measure of the small network, a key of `CONFIDENCES`.
        threshold: Confidence below which an image goes to the big network.
        tally: Accuracy on validation images.
        cost: Expected cost of one image.
    """

    small: str
    big: str
    rule: str
    threshold: float
    tally: AccuracyCount
    cost: float

    def __str__(self) -> str:
        return f"{self.small} -> {self.big}"


@dataclass(frozen=True)
class CascadeChoice:
    """Cheapest network and cheapest cascade that reach an accuracy.

    Attributes:
        single: Cheapest network that reaches the accuracy alone, or None.
        pair: Cheapest cascade that reaches the accuracy, or None.
    """

    single: SingleNetwork | None
    pair: Pair | None

    @property
    def gains(self) -> bool:
        """True if the cascade is expected to be cheaper than every single network."""
        return self.pair is not None and (self.single is None or self.pair.cost < self.single.cost)

    @property
    def cost(self) -> float | None:
        """Cost of the cheaper of the two; None if there is neither."""
        return min((way.cost for way in (self.single, self.pair) if way is not None), default=None)


def check_aim(target: float, margin: float) -> None:
    """Raise an error if the target is not an accuracy, or the margin is negative or infinite.

    Raises:
        ConfigError: One of the two is wrong; the message names it.
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
    networks: Mapping[str, CandidateScores],
    labels: NDArray[np.integer],
    target: float,
    margin: float = 1.0,
    overhead: float = 0.0,
) -> CascadeChoice:
    """Find the cheapest network and the cheapest cascade that reach an accuracy.

    The best of many thresholds and pairs is likely to be a lucky one, so an accuracy counts as
    reached only with a margin. Single networks need the same margin. The standard error is that at
    the target accuracy, so it is not 0 for networks without a single error.

    Args:
        networks: Candidate networks by name.
        labels: Correct class of each image, (N,).
        target: Accuracy to reach, in 0..1.
        margin: Margin in standard errors of an accuracy, at least 0 and finite.
        overhead: Cost of the decision for one image, in the unit of the costs.

    Raises:
        ConfigError: The target is not an accuracy, or the margin is negative or infinite.
        InfeasibleError: No network and no pair reaches the accuracy; the message names the best.
    """
    check_aim(target, margin)
    outcomes = {n: NetworkOutcomes.of(k.scores, labels, k.cost) for n, k in networks.items()}
    singles = [
        SingleNetwork(n, AccuracyCount(k.accuracy, len(labels)), k.cost)
        for n, k in outcomes.items()
    ]
    pairs = [
        pair
        for small, big in itertools.permutations(outcomes, 2)
        for pair in best_pairs(outcomes, small, big, target, margin, overhead)
    ]
    ways: list[SingleNetwork | Pair] = [*singles, *pairs]
    if not any(way.tally.at_least(margin) >= target for way in ways):
        raise _infeasible(ways, target, margin)
    return CascadeChoice(
        min((s for s in singles if s.tally.at_least(margin) >= target), key=_order, default=None),
        min((p for p in pairs if p.tally.at_least(margin) >= target), key=_order, default=None),
    )


def _order(way: SingleNetwork | Pair) -> tuple[float, float]:
    return way.cost, -way.tally.accuracy


def _infeasible(ways: list[SingleNetwork | Pair], target: float, margin: float) -> InfeasibleError:
    best = max(ways, key=lambda way: way.tally.at_least(margin))
    tally, name = best.tally, best.name if isinstance(best, SingleNetwork) else str(best)
    return InfeasibleError(
        f"neither a network nor a pair reaches accuracy {target:g} with a margin of {margin:g} "
        f"standard errors on {tally.n} validation images; the best is {name} with "
        f"{tally.accuracy:.4f} ({tally.at_least(margin):.4f} with that margin). Lower "
        "--target-accuracy or --margin"
    )


def single_tally(scores: NDArray[Any], labels: NDArray[np.integer]) -> AccuracyCount:
    """Return the accuracy of a network, given its scores (N, K)."""
    return AccuracyCount(float(correct(scores, labels).mean()), len(labels))


def pair_tally(
    small: NDArray[Any],
    big: NDArray[Any],
    labels: NDArray[np.integer],
    rule: str,
    threshold: float,
) -> AccuracyCount:
    """Return the accuracy of a cascade, given the scores (N, K) of both of its networks."""
    on = unsure(small, rule, threshold)
    right = np.where(on, correct(big, labels), correct(small, labels))
    return AccuracyCount(float(right.mean()), len(labels), float(on.mean()))


def best_pairs(
    outcomes: Mapping[str, NetworkOutcomes],
    small: str,
    big: str,
    target: float,
    margin: float,
    overhead: float = 0.0,
) -> list[Pair]:
    """Return for each rule the cheapest cascade of two networks that reaches an accuracy.

    If none reaches it, that is the most accurate one. Only thresholds with images on both sides
    count; without any, or if the big network costs less, the list is empty.

    Args:
        outcomes: Outcomes of networks by name, on the same images.
        small: Name of the network that runs on every image.
        big: Name of the other network.
        target: Accuracy to reach, in 0..1.
        margin: Margin in standard errors of an accuracy; see `choose`.
        overhead: Cost of the decision for one image, in the unit of the costs.
    """
    first, second = outcomes[small], outcomes[big]
    if first.cost >= second.cost:
        return []
    found, n = [], len(first.correct)
    for rule in CONFIDENCES:
        curve = threshold_curve(first, second, rule)
        if len(curve.thresholds) == 0:
            continue
        safe = wilson_lower(curve.accuracies, n, margin)
        place = int((safe >= target).argmax()) if (safe >= target).any() else int(safe.argmax())
        share = float(curve.shares[place])
        tally = AccuracyCount(float(curve.accuracies[place]), n, share)
        cost = first.cost + overhead + share * second.cost
        found.append(Pair(small, big, rule, float(curve.thresholds[place]), tally, cost))
    return found
