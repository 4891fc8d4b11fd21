"""Confidence intervals, with one method for each kind of number.

- A proportion (an accuracy, an intersection over union) has a score interval (Wilson, JASA 1927).
  It stays within 0..1 and has a positive width also for an accuracy of 1 on 50 images.
- A predicted cost is positive and its errors are factors: it has a log-normal interval.
- Any other metric has the normal interval of its mean.
- The difference of two proportions on the same images has the interval of Bonett and Price
  (J. Educ. Behav. Stat. 2012), on different images that of Newcombe (Stat. Med. 1998).
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
    """Confidence interval of a number.

    Attributes:
        low: Lower end.
        high: Upper end.
        level: Confidence level: share of such intervals that contain the true value, in 0..1.
        method: Method that computed the interval.
    """

    low: float
    high: float
    level: float
    method: Method

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def below(self, value: float) -> float:
        """Return the distance from a value down to the lower end; at least 0, for error bars."""
        return max(0.0, value - self.low)

    def above(self, value: float) -> float:
        """Return the distance from a value up to the upper end; at least 0."""
        return max(0.0, self.high - value)

    @property
    def ends(self) -> list[float]:
        """Both ends, as a JSON list."""
        return [self.low, self.high]


def is_proportion(unit: str | None, metric: str = "") -> bool:
    """Return whether a metric lies in 0..1, by its unit or, if that is unknown, by its name."""
    return unit == _FRACTION if unit is not None else metric in _FRACTIONS


def wilson_interval(share: float, n: float, level: float = 0.95) -> Interval:
    """Return the Wilson score interval of a proportion.

    Args:
        share: Share of the trials that succeeded, in 0..1.
        n: Number of trials, above 0; for a mean of numbers between 0 and 1 an effective number,
            which need not be whole.
        level: Confidence level, in 0..1.
    """
    z = _z(level)
    low = max(0.0, min(share, wilson_lower(share, n, z)))
    high = min(1.0, max(share, 1 - wilson_lower(1 - share, n, z)))
    return Interval(low, high, level, "wilson")


def wilson_lower(share: Any, n: float, z: float) -> Any:
    """Return the lower bound of the Wilson score interval of a proportion.

    This is the smallest true proportion that lies at most ``z`` standard errors below the observed
    share. The standard error is that of the true proportion, since that of the observed share is 0
    where all trials succeeded.

    Args:
        share: Observed share, in 0..1; a number or an array.
        n: Number of trials.
        z: Number of standard errors, at least 0.
    """
    spread = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return (share + z * z / (2 * n) - spread) / (1 + z * z / n)


def lognormal_interval(median: float, std: float, level: float = 0.9) -> Interval:
    """Return the log-normal interval of a positive cost whose error is a factor.

    Args:
        median: Median of the cost, above 0.
        std: Half the width of the one-sigma interval, in the unit of the cost.
        level: Confidence level, in 0..1.
    """
    reach = math.exp(_z(level) * math.asinh(std / median))
    return Interval(median / reach, median * reach, level, "log-normal")


def normal_interval(value: float, standard_error: float, level: float = 0.95) -> Interval:
    """Return the normal interval of a mean; a single point if the standard error is not finite."""
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
    """Return the confidence interval of a task's metric.

    A proportion that is not a plain share of correct answers, such as a mean intersection over
    union, is treated as a share of the number of images that would give its standard error.

    Args:
        value: Value of the metric.
        standard_error: Standard error of the value, from a `MetricValue`; 0 or NaN where no
            spread was observed.
        n: Number of images, if known.
        proportion: Whether the metric lies in 0..1.
        level: Confidence level, in 0..1.
    """
    if not (proportion and 0 <= value <= 1):
        return normal_interval(value, standard_error, level)
    if standard_error > 0 and 0 < value < 1:
        return wilson_interval(value, 1 + value * (1 - value) / standard_error**2, level)
    if n and (value in (0, 1) or math.isnan(standard_error)):
        return wilson_interval(value, n, level)
    return Interval(value, value, level, "wilson")


def row_interval(row: Mapping[str, Any]) -> Interval | None:
    """Return the interval of a metric row of a bundle; None where it has no standard error.

    The interval is recomputed, since bundles of older versions hold the normal approximation.
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
    """Return the interval of the difference of two metrics on the same images.

    Args:
        difference: Difference of the two metrics.
        standard_error: Standard error of the mean of the per-image differences.
        n: Number of images.
        proportion: Whether the metrics lie in 0..1.
        level: Confidence level, in 0..1.
    """
    usual = normal_interval(difference, standard_error, level)
    if not proportion or not abs(difference) <= 1:
        return usual
    error = standard_error if math.isfinite(standard_error) else 0.0
    discordant = n * ((n - 1) * error**2 + difference**2)  # images that only one of them has right
    if abs(discordant - round(discordant)) > _ROUNDING * n:  # not -1, 0 or 1 an image
        return Interval(max(-1.0, usual.low), min(1.0, usual.high), level, usual.method)
    centre = n * difference / (n + 2)
    spread = math.sqrt(max(0.0, (discordant + 2) / (n + 2) - centre**2) / (n + 2))
    low, high = centre - _z(level) * spread, centre + _z(level) * spread
    low, high = min(low, difference), max(high, difference)
    return Interval(max(-1.0, low), min(1.0, high), level, "bonett-price")


def difference_interval(
    first: float, of_first: Interval, second: float, of_second: Interval
) -> Interval:
    """Return the interval of ``first - second``, two metrics on different images."""
    difference = first - second
    down = math.hypot(of_first.below(first), of_second.above(second))
    up = math.hypot(of_first.above(first), of_second.below(second))
    return Interval(difference - down, difference + up, of_first.level, "newcombe")


def _z(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2)
