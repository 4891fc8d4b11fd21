"""Accuracy and cost of a cascade at every threshold, from outcomes on labelled images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.cascades.runner import CONFIDENCES, Floats, confidences

__all__ = ["NetworkOutcomes", "ThresholdCurve", "correct", "threshold_curve"]


def correct(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return a mask (N,) of correctly classified images; NaN or infinite scores never are.

    Args:
        scores: Class scores (N, K).
        labels: Correct class of each image, (N,).
    """
    known = np.isfinite(scores.max(axis=1))
    return np.asarray((scores.argmax(axis=1) == labels) & known)


@dataclass(frozen=True, eq=False)
class NetworkOutcomes:
    """Outcomes of a network on N labelled images: all that a cascade with it depends on.

    Attributes:
        correct: Mask of the correctly classified images, (N,).
        confidences: Confidence in each image's class, (N,), for each key of `CONFIDENCES`.
        cost: Cost of one image; positive.
    """

    correct: NDArray[np.bool_]
    confidences: Mapping[str, Floats]
    cost: float

    @classmethod
    def of(
        cls, scores: NDArray[np.floating], labels: NDArray[np.integer], cost: float
    ) -> NetworkOutcomes:
        """Return the outcomes of class scores (N, K)."""
        sure = {rule: confidences(scores, rule) for rule in CONFIDENCES}
        return cls(correct(scores, labels), sure, cost)

    @property
    def accuracy(self) -> float:
        """Share of correctly classified images."""
        return float(self.correct.mean())

    @cached_property
    def cuts(self) -> Mapping[str, _Cuts]:
        """Thresholds of this network as the small one of a cascade, for each rule."""
        return {rule: _Cuts.of(confidence) for rule, confidence in self.confidences.items()}


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Thresholds that leave images on both sides.

    Attributes:
        order: Images by ascending confidence, (N,).
        places: For each threshold, the place in this order of the last image below it, (T,).
        thresholds: Thresholds, ascending, (T,); each lies midway between the confidences of two
            images, away from rounding errors.
    """

    order: NDArray[np.integer]
    places: NDArray[np.integer]
    thresholds: Floats

    @classmethod
    def of(cls, confidence: Floats) -> _Cuts:
        """Return the thresholds between confidences (N,)."""
        order = np.argsort(confidence, kind="stable")
        ascending = confidence[order]
        middle = (ascending[:-1] + ascending[1:]) / 2
        places = np.flatnonzero((ascending[:-1] < middle) & (middle < 1))
        # Scores that are NaN or infinite have a confidence of -1; a threshold is at least 0.
        return cls(order, places, np.maximum(0.0, middle[places]))


@dataclass(frozen=True, eq=False)
class ThresholdCurve:
    """Accuracy and share of a cascade at T thresholds, which ascend, as does the share.

    Attributes:
        thresholds: Confidences below which an image goes to the big network, (T,), in 0..1.
        accuracies: Accuracy at each threshold, (T,).
        shares: Share of the images on which the big network runs, (T,).
    """

    thresholds: Floats
    accuracies: Floats
    shares: Floats


def threshold_curve(small: NetworkOutcomes, big: NetworkOutcomes, rule: str) -> ThresholdCurve:
    """Return the curve over all thresholds that leave images on both sides.

    Args:
        small: Outcomes of the network that runs on every image.
        big: Outcomes of the other network on the same images.
        rule: Key of `CONFIDENCES`.
    """
    cuts, n = small.cuts[rule], len(small.correct)
    change = big.correct.astype(np.int64) - small.correct
    right = small.correct.sum() + np.cumsum(change[cuts.order])[cuts.places]
    return ThresholdCurve(cuts.thresholds, right / n, (cuts.places + 1) / n)
