"""Confidence intervals: one way for each kind of number, wherever it is shown or decided by.

- A proportion (an accuracy, an intersection over union) has a score interval, after Wilson, JASA
  1927. It stays within 0..1, and an accuracy of 1 on 50 images has one, too.
- A cost that was predicted is positive and its errors are factors: a log-normal interval.
- Any other metric has the normal interval of its mean.
- Of two proportions of the same images, the interval of their difference is that of Bonett and
  Price (J. Educ. Behav. Stat. 2012), of different images that of Newcombe (Stat. Med. 1998).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

__all__ = [
    "Interval",
    "difference_interval",
    "is_proportion",
    "lognormal_interval",
    "metric_interval",
    "normal_interval",
    "paired_difference_interval",
    "row_interval",
    "wilson_interval",
    "wilson_lower",
]

Method = Literal["wilson", "log-normal", "normal", "bonett-price", "newcombe"]

_FRACTION = "fraction"
_FRACTIONS = frozenset({"accuracy", "mean_iou", "pixel_accuracy"})
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Interval:
    """The values that a number may have in truth.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        level: Share of such intervals that hold the true value, in 0..1.
        method: How it was computed.
    """

    low: float
    high: float
    level: float
    method: Method

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def below(self, value: float) -> float:
        """How far it reaches below a value; at least 0, as error bars want it."""
        return max(0.0, value - self.low)

    def above(self, value: float) -> float:
        """How far it reaches above a value; at least 0."""
        return max(0.0, self.high - value)

    @property
    def ends(self) -> list[float]:
        """Both ends, as a JSON list."""
        return [self.low, self.high]


def is_proportion(unit: str | None, metric: str = "") -> bool:
    """Whether a metric lies in 0..1, by its unit; where that is not known, by its name."""
    return unit == _FRACTION if unit is not None else metric in _FRACTIONS


def wilson_interval(share: float, n: float, level: float = 0.95) -> Interval:
    """Return the score interval of a proportion.

    Args:
        share: Of the trials that succeeded, in 0..1.
        n: Number of trials, above 0; of a mean of numbers between 0 and 1 an effective one, which
            need not be whole.
        level: Of confidence.
    """
    z = _z(level)
    low = max(0.0, min(share, wilson_lower(share, n, z)))
    high = min(1.0, max(share, 1 - wilson_lower(1 - share, n, z)))
    return Interval(low, high, level, "wilson")


def wilson_lower(share: Any, n: float, z: float) -> Any:
    """Return the least true proportion that is at most ``z`` of its standard errors below a share.

    The standard error is that of the true proportion: that of the observed one is 0 where all
    trials succeeded.

    Args:
        share: In 0..1; a number, or an array of them.
        n: Number of trials.
        z: At least 0.
    """
    spread = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return (share + z * z / (2 * n) - spread) / (1 + z * z / n)


def lognormal_interval(median: float, std: float, level: float = 0.9) -> Interval:
    """Return the interval of a positive cost whose error is a factor.

    Args:
        median: Of the cost, above 0.
        std: Half the width of the one-sigma interval, in the unit of the cost.
        level: Of confidence.
    """
    reach = math.exp(_z(level) * math.asinh(std / median))
    return Interval(median / reach, median * reach, level, "log-normal")


def normal_interval(value: float, standard_error: float, level: float = 0.95) -> Interval:
    """Return the interval of a mean that may have any value; a point if the error is not known."""
    margin = _z(level) * standard_error if math.isfinite(standard_error) else 0.0
    return Interval(value - margin, value + margin, level, "normal")


def metric_interval(
    value: float,
    standard_error: float,
    n: int | None = None,
    *,
    proportion: bool = True,
    level: float = 0.95,
) -> Interval:
    """Return the interval of a task's metric.

    A proportion that is no plain share of right answers, such as a mean intersection over union,
    is treated as one of as many images as would give its standard error.

    Args:
        value: Of the metric.
        standard_error: Of that value, as `with_standard_errors` has it; 0 or not a number where no
            spread was seen.
        n: Number of images, where it is known.
        proportion: Whether the metric lies in 0..1.
        level: Of confidence.
    """
    if not (proportion and 0 <= value <= 1):
        return normal_interval(value, standard_error, level)
    if standard_error > 0 and 0 < value < 1:
        return wilson_interval(value, 1 + value * (1 - value) / standard_error**2, level)
    if n and (value in (0, 1) or math.isnan(standard_error)):
        return wilson_interval(value, n, level)
    return Interval(value, value, level, "wilson")


def row_interval(row: Mapping[str, Any]) -> Interval | None:
    """Return the interval of a metric as a bundle has it; None where it has no standard error.

    Computed anew, since bundles of older versions hold the normal approximation.
    """
    if row.get("standard_error") is None:
        return None
    proportion = is_proportion(row.get("unit"), str(row.get("name", "")))
    return metric_interval(row["value"], row["standard_error"], row.get("n"), proportion=proportion)


def paired_difference_interval(
    difference: float,
    standard_error: float,
    n: int,
    *,
    proportion: bool = True,
    level: float = 0.95,
) -> Interval:
    """Return the interval of the difference of two metrics that were taken on the same images.

    Args:
        difference: Between the two.
        standard_error: Of the mean of the images' differences.
        n: Number of images.
        proportion: Whether the metrics lie in 0..1.
        level: Of confidence.
    """
    usual = normal_interval(difference, standard_error, level)
    if not proportion or not abs(difference) <= 1:
        return usual
    error = standard_error if math.isfinite(standard_error) else 0.0
    discordant = n * ((n - 1) * error**2 + difference**2)  # right by one of the two only
    if abs(discordant - round(discordant)) > _ROUNDING * n:  # shares of images, not answers
        return Interval(max(-1.0, usual.low), min(1.0, usual.high), level, usual.method)
    centre = n * difference / (n + 2)
    spread = math.sqrt(max(0.0, (discordant + 2) / (n + 2) - centre**2) / (n + 2))
    low, high = centre - _z(level) * spread, centre + _z(level) * spread
    low, high = min(low, difference), max(high, difference)
    return Interval(max(-1.0, low), min(1.0, high), level, "bonett-price")


def difference_interval(
    first: float, of_first: Interval, second: float, of_second: Interval
) -> Interval:
    """Return the interval of ``first - second``, which were taken on different images."""
    difference = first - second
    down = math.hypot(of_first.below(first), of_second.above(second))
    up = math.hypot(of_first.above(first), of_second.below(second))
    return Interval(difference - down, difference + up, of_first.level, "newcombe")


def _z(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2)
