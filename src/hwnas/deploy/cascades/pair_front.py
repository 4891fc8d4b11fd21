"""Front of expected cost and accuracy over all cascades of two among many networks.

A pair is good if the big network is right where the small one is unsure, which the accuracies of
the two do not tell. So all pairs are compared by their outcomes on the same images, at every
threshold. One pair takes about a millisecond for ten thousand images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.cascades.choice import AccuracyCount, Pair
from hwnas.deploy.cascades.curve import NetworkOutcomes, threshold_curve
from hwnas.deploy.cascades.runner import CONFIDENCES

__all__ = ["nearest_pairs", "pair_front"]

_RULES = tuple(CONFIDENCES)


@dataclass(frozen=True, eq=False)
class _Points:
    """Cascades and single networks as points, in ascending order of costs.

    Attributes:
        costs: Expected cost of each, (P,).
        accuracies: Accuracy of each, (P,).
        others: Threshold, share, and numbers of small network, big network and rule, (P, 5); the
            number of the rule is -1 for a single network.
    """

    costs: NDArray[np.float64]
    accuracies: NDArray[np.float64]
    others: NDArray[np.float64]

    @classmethod
    def front(cls, several: Sequence[_Points]) -> _Points:
        """Return the points that no other point dominates; of equal ones, the first."""
        costs, accuracies, others = (
            np.concatenate([getattr(each, name) for each in several])
            for name in ("costs", "accuracies", "others")
        )
        order = np.lexsort((-accuracies, costs))
        kept = order[_rises(accuracies[order])]
        return cls(costs[kept], accuracies[kept], others[kept])


def pair_front(outcomes: Mapping[str, NetworkOutcomes], overhead: float = 0.0) -> list[Pair]:
    """Return the cascades that neither a cascade nor a single network dominates, cheapest first.

    A pair occurs once for each of its rules and thresholds that are on the front.

    Args:
        outcomes: Outcomes of networks by name, on the same images.
        overhead: Cost of the decision for one image, in the unit of the costs.
    """
    names, networks = list(outcomes), list(outcomes.values())
    if not networks:
        return []
    numbers = np.arange(len(networks))[:, None] * np.array([[0, 0, 1, 1, 0]])
    alone = _Points(
        np.array([each.cost for each in networks]),
        np.array([each.accuracy for each in networks]),
        numbers - np.array([[0, 0, 0, 0, 1]]),
    )
    found = _Points.front([alone])
    for small in range(len(networks)):  # pruned in between, since each curve has many points
        found = _Points.front([found, *_curves(networks, small, overhead)])
    n = len(networks[0].correct)
    return [
        Pair(
            names[int(small)],
            names[int(big)],
            _RULES[int(rule)],
            float(threshold),
            AccuracyCount(float(accuracy), n, float(share)),
            float(cost),
        )
        for cost, accuracy, (threshold, share, small, big, rule) in zip(
            found.costs, found.accuracies, found.others, strict=True
        )
        if rule >= 0
    ]


def nearest_pairs(front: Sequence[Pair], accuracy: float, count: int) -> list[Pair]:
    """Return pairs of a front, each once, those first whose accuracy is nearest to a wanted one.

    Args:
        front: Result of `pair_front`.
        accuracy: Wanted accuracy, in 0..1.
        count: Largest number of pairs.
    """
    found: dict[tuple[str, str], Pair] = {}
    for pair in sorted(front, key=lambda each: abs(each.tally.accuracy - accuracy)):
        found.setdefault((pair.small, pair.big), pair)
    return list(found.values())[:count]


def _curves(networks: Sequence[NetworkOutcomes], small: int, overhead: float) -> Iterator[_Points]:
    """Yield all cascades with a small network that no cheaper one of its pair dominates."""
    first = networks[small]
    for big, second in enumerate(networks):
        if not first.cost < second.cost:
            continue
        for number, rule in enumerate(_RULES):
            curve = threshold_curve(first, second, rule)
            kept = _rises(curve.accuracies)
            shares = curve.shares[kept]
            same = [np.full(len(shares), each) for each in (small, big, number)]
            yield _Points(
                first.cost + overhead + shares * second.cost,
                curve.accuracies[kept],
                np.stack([curve.thresholds[kept], shares, *same], axis=1),
            )


def _rises(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the values that are larger than all before them."""
    before = np.concatenate([[-np.inf], np.maximum.accumulate(values)])[: len(values)]
    return np.asarray(values > before)
