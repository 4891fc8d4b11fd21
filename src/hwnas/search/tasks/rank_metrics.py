"""Metrics of the order in which a network's scores put images: areas under two curves.

They depend on all images of a split together, so they are no functions of means over images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hwnas.search.tasks.delta_method import MetricValue
from hwnas.search.tasks.task import Metric

__all__ = ["RANK_METRICS", "FractionMetrics", "auroc", "average_precision", "rank_metrics"]

Floats = npt.NDArray[np.float64]


def auroc(scores: Floats, positive: npt.NDArray[np.bool_]) -> tuple[float, Floats]:
    """Return the area under the ROC curve of one class, and the influence of each image.

    The area is the probability that an image of the class scores higher than another one; equal
    scores count half. Influences follow DeLong et al., "Comparing the Areas under Two or More
    Correlated Receiver Operating Characteristic Curves", Biometrics 44, 1988.

    Args:
        scores: Score of each image, (N,); higher scores mean the class.
        positive: Whether the image is of the class, (N,); some are and some are not.
    """
    n, ones = len(scores), int(positive.sum())
    ranks = _ranks(scores)
    won = np.empty(n)  # share of the images of the other kind that an image is on the right side of
    won[positive] = (ranks[positive] - _ranks(scores[positive])) / (n - ones)
    won[~positive] = 1 - (ranks[~positive] - _ranks(scores[~positive])) / ones
    area = float(won[positive].mean())
    share = np.where(positive, ones, n - ones) / n
    return area, (won - area) / share


def _ranks(scores: Floats) -> Floats:
    """Return the rank of each score from 1, the mean rank if scores are equal."""
    rising = np.sort(scores)
    first, last = np.searchsorted(rising, scores), np.searchsorted(rising, scores, "right")
    return (first + last + 1) / 2


def average_precision(scores: Floats, positive: npt.NDArray[np.bool_]) -> tuple[float, Floats]:
    """Return the average precision of one class, and the influence of each image.

    It is the mean over images of the class of the precision among all images that score at least as
    high. Influences are the derivatives of this with respect to the weight of each image
    (infinitesimal jackknife; Efron, "The Jackknife, the Bootstrap and Other Resampling Plans",
    1982, chapter 6).

    Args:
        scores: Score of each image, (N,); higher scores mean the class.
        positive: Whether the image is of the class, (N,); some are.
    """
    n, ones = len(scores), int(positive.sum())
    order = np.argsort(-scores, kind="stable")
    falling, hits = scores[order], positive[order]
    last = np.searchsorted(-falling, -falling, side="right") - 1  # of equal scores
    first = np.searchsorted(-falling, -falling, side="left")
    above = last + 1.0  # images that score at least as high
    precision = np.cumsum(hits)[last] / above
    average = float(precision[hits].mean())
    # More weight for an image changes the precision at all images of the class that are not above
    # it by (1 if it is of the class, else 0) - precision, over their number of images above.
    after = np.cumsum((hits / above)[::-1])[::-1][first]
    less = np.cumsum((hits * precision / above)[::-1])[::-1][first]
    moved = np.where(hits, after, 0.0) - less + np.where(hits, precision - average, 0.0)
    influence = np.empty(n)
    influence[order] = moved * n / ones
    return average, influence


RANK_METRICS: Mapping[str, Callable[[Floats, npt.NDArray[np.bool_]], tuple[float, Floats]]] = {
    "auroc": auroc,
    "average_precision": average_precision,
}
"""Functions by the name of the metric, each for one class."""


class FractionMetrics:
    """Base of tasks whose metrics are all fractions to maximise, some of them of ranks."""

    metric_names: tuple[str, ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the task, all fractions to maximise."""
        return tuple(Metric(name, "maximize", "fraction") for name in self.metric_names)

    @property
    def rank_metrics(self) -> tuple[str, ...]:
        """Names of the metrics of ranks that are requested."""
        return tuple(name for name in self.metric_names if name in RANK_METRICS)

    def ranked(self, outputs: Tensor) -> Tensor:
        """Return the outputs themselves."""
        return outputs


def rank_metrics(names: tuple[str, ...], scores: Tensor, true: Tensor) -> dict[str, MetricValue]:
    """Return the means over classes of metrics of ranks.

    A class that all images of the split have, or none, is left out.

    Args:
        names: Names, of `RANK_METRICS`.
        scores: Score of each image for each class, (N, K).
        true: 1 where the image has the class, else 0, (N, K).
    """
    values, positive = scores.detach().double().numpy(), true.numpy() > 0
    able = [k for k in range(values.shape[1]) if 0 < positive[:, k].sum() < len(positive)]
    found = {}
    for name in names:
        each = [RANK_METRICS[name](values[:, k], positive[:, k]) for k in able]
        mean = float(np.mean([value for value, _ in each])) if each else float("nan")
        influence = sum((i for _, i in each), np.zeros(len(values))) / max(1, len(each))
        found[name] = MetricValue(mean, torch.from_numpy(influence))
    return found
