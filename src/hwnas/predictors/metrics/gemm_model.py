"""Cost model of matrix products, which predicts their cost from their sizes.

After GPPerf, which predicts runtime and power of products on GPUs from M, N, K by regression. There
is one departure: the regression is a sum over the kinds of work in a blocked product (operations on
tiles, bytes moved), none of which can take negative time. The model can therefore extrapolate to
sizes beyond those that were timed. Power is predicted as energy, which is such a sum, too, over
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LinearRegression

from hwnas.errors import ConfigError
from hwnas.predictors.estimate import NORMAL_90, Estimate
from hwnas.predictors.models.gaussian_process import Numbers

__all__ = ["LEAST", "GemmModel", "PowerModel", "Product", "Roofline"]

LEAST = 20
"""Least number of products to learn from."""

_PASSES = 4  # passes of least squares, until the weights have settled
_THRESHOLDS = tuple(2**power for power in range(12, 25))
_GAIN = 0.8  # factor by which a threshold must reduce the error to be accepted
_LEAST_SIDE = 8  # least number of products on each side of a threshold


class Product(Protocol):
    """Matrix product, perhaps with the tile that it is computed in.

    Products that one model is fitted to have the same kinds of work.
    """

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes m, n and k."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the product."""

    @property
    def work(self) -> tuple[float, ...]:
        """Amount of each kind of work, of which the first is a call."""


@dataclass(frozen=True)
class Roofline:
    """Cost of products as a sum over kinds of work, none of which has a negative cost.

    Runtimes compute small products in another way than large ones, e.g. with fewer threads. There
    may therefore be several sums, each for a range of sizes.

    Attributes:
        rates: Cost per unit of each kind of work, of shape (len(thresholds_macs) + 1, W).
        thresholds_macs: Multiply-accumulates from which the next row of rates applies, ascending.
    """

    rates: Numbers
    thresholds_macs: tuple[int, ...] = ()

    @classmethod
    def fit(cls, gemms: Sequence[Product], costs: Sequence[float] | Numbers) -> Roofline:
        """Fit logarithms of positive costs by least squares; keep thresholds that reduce errors."""
        work, macs, logs = _work(gemms), _macs(gemms), np.log(costs)
        best = cls(_rates(work, logs)[None])
        while True:
            error = _spread(logs - best._logs(work, macs))
            tried = [best._split(threshold, work, macs, logs) for threshold in _THRESHOLDS]
            errors = [_spread(logs - new._logs(work, macs)) if new else np.inf for new in tried]
            new = tried[int(np.argmin(errors))]
            if new is None or min(errors) >= _GAIN * error:
                return best
            best = new

    def log_costs(self, gemms: Sequence[Product]) -> Numbers:
        """Return the logarithms of the costs of products."""
        return self._logs(_work(gemms), _macs(gemms))

    def _logs(self, work: Numbers, macs: Numbers) -> Numbers:
        rates = self.rates[np.searchsorted(self.thresholds_macs, macs, side="right")]
        logs: Numbers = np.log((work * rates).sum(1))
        return logs

    def _split(
        self, threshold_macs: int, work: Numbers, macs: Numbers, logs: Numbers
    ) -> Roofline | None:
        """Return the fit with one more threshold, or None if a side of it has too few products."""
        thresholds = tuple(sorted({*self.thresholds_macs, threshold_macs}))
        place = np.searchsorted(thresholds, macs, side="right")
        parts = [place == part for part in range(len(thresholds) + 1)]
        if thresholds == self.thresholds_macs or min(part.sum() for part in parts) < _LEAST_SIDE:
            return None
        return Roofline(np.array([_rates(work[part], logs[part]) for part in parts]), thresholds)


@dataclass(frozen=True)
class GemmModel:
    """Cost of products on one target, with its uncertainty.

    Attributes:
        target: Name of the target.
        metric: Name of the cost, e.g. ``"latency_ms"``; energy adds up in the same way.
        roofline: Model of the costs.
        log_std: Standard deviation of the logarithm of a cost within the sizes that were seen.
        drift: Additional standard deviation for each factor of e beyond these sizes.
        seen: Logarithms of the smallest and the largest m, n, k and m n k, of shape (2, 4).
    """

    target: str
    metric: str
    roofline: Roofline
    log_std: float
    drift: float
    seen: Numbers

    @classmethod
    def fit(
        cls,
        target: str,
        gemms: Sequence[Product],
        costs: Sequence[float] | Numbers,
        metric: str = "latency_ms",
    ) -> GemmModel:
        """Fit the model to measured products.

        The error beyond the sizes that were seen is found by leaving out the largest and the
        smallest third of the products by m, by n, by k and by m n k.

        Args:
            target: Name of the target.
            gemms: Products that were measured, at least 20 different ones.
            costs: Cost of each product.
            metric: Name of the cost, which ends with its unit.

        Raises:
            ConfigError: There are too few products, or a cost is not a positive number.
        """
        if len(gemms) != len(costs) or len(set(gemms)) < LEAST:
            raise ConfigError(
                f"got {len(gemms)} products, {len(set(gemms))} of them different, and {len(costs)} "
                f"costs; expected a cost for each, and at least {LEAST} different products"
            )
        found = np.asarray(costs, dtype=np.float64)
        if not (np.isfinite(found) & (found > 0)).all():
            raise ConfigError(f"{metric} has values that are not positive numbers; leave them out")
        roofline = Roofline.fit(gemms, found)
        log_std = _spread(np.log(found) - roofline.log_costs(gemms))
        places = _places(gemms)
        return cls(
            target,
            metric,
            roofline,
            log_std,
            _drift(gemms, found, log_std),
            np.array([places.min(0), places.max(0)]),
        )

    def predict(self, gemms: Sequence[Product]) -> list[Estimate]:
        """Predict the cost of each product."""
        if not gemms:
            return []
        stds = np.hypot(self.log_std, self.drift * _distance(_places(gemms), self.seen))
        return _estimates(self.metric, self.roofline.log_costs(gemms), stds, self.target)


@dataclass(frozen=True)
class PowerModel:
    """Mean power while a product runs again and again, as its energy over its time.

    The ratio of two sums over the same kinds of work stays between the powers of these kinds,
    however large a product is.

    Attributes:
        latency: Model of the latency in milliseconds.
        energy: Model of the energy in millijoules.
        log_std: Standard deviation of the logarithm of the power.
    """

    latency: GemmModel
    energy: GemmModel
    log_std: float

    @classmethod
    def fit(
        cls, latency: GemmModel, gemms: Sequence[Product], latencies_ms: Numbers, powers_w: Numbers
    ) -> PowerModel:
        """Fit the model to measured powers in watts.

        Raises:
            ConfigError: There are too few products, or a power is not a positive number.
        """
        energy = GemmModel.fit(latency.target, gemms, powers_w * latencies_ms, "energy_mj")
        logs = energy.roofline.log_costs(gemms) - latency.roofline.log_costs(gemms)
        return cls(latency, energy, _spread(np.log(powers_w) - logs))

    def predict(self, gemms: Sequence[Product]) -> list[Estimate]:
        """Predict the power of each product in watts; millijoules per millisecond are watts."""
        if not gemms:
            return []
        logs = self.energy.roofline.log_costs(gemms) - self.latency.roofline.log_costs(gemms)
        stds = np.full(len(gemms), self.log_std)
        return _estimates("power_w", logs, stds, self.latency.target)


def _estimates(metric: str, logs: Numbers, stds: Numbers, target: str) -> list[Estimate]:
    return [
        Estimate.log_normal(metric, float(log), float(std), target)
        for log, std in zip(logs, stds, strict=True)
    ]


def _work(gemms: Sequence[Product]) -> Numbers:
    """Return the amounts of each kind of work in products, of shape (len(gemms), W)."""
    return np.array([gemm.work for gemm in gemms], dtype=np.float64)


def _macs(gemms: Sequence[Product]) -> Numbers:
    return np.array([gemm.macs for gemm in gemms], dtype=np.float64)


def _rates(work: Numbers, logs: Numbers) -> Numbers:
    """Return the cost per unit of each kind of work, of shape (W,), none negative.

    Each pass linearises the logarithms around the last fit, so that the squares of their errors
    are minimised (Gauss-Newton).
    """
    predicted, ratios = np.exp(logs), np.ones_like(logs)
    for _ in range(_PASSES):
        shares = work / predicted[:, None]
        scale = np.sqrt((shares**2).mean(0))
        scale[scale == 0] = 1.0  # none of the products has this kind of work
        fitted = LinearRegression(positive=True, fit_intercept=False).fit(shares / scale, ratios)
        rates: Numbers = fitted.coef_ / scale
        predicted = work @ rates
        ratios = 1 + logs - np.log(predicted)
    return rates


def _places(gemms: Sequence[Product]) -> Numbers:
    """Return the logarithms of m, n, k and m n k, of shape (len(gemms), 4)."""
    places: Numbers = np.log([(*gemm.sizes, gemm.macs) for gemm in gemms])
    return places


def _distance(places: Numbers, seen: Numbers) -> Numbers:
    """Return the distance from the sizes that were seen, of shape (len(places),); 0 inside."""
    beyond = np.maximum(0.0, np.maximum(seen[0] - places, places - seen[1]))
    distance: Numbers = np.sqrt((beyond**2).sum(1))
    return distance


def _held_out(places: Numbers) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield masks of the least and of the largest third by each column."""
    for column in places.T:
        low, high = np.quantile(column, [1 / 3, 2 / 3])
        yield from (out for out in (column <= low, column >= high) if not out.all())


def _drift(gemms: Sequence[Product], costs: Numbers, log_std: float) -> float:
    """Return the standard deviation of the log cost, for each factor of e beyond the sizes seen.

    It is the smallest one with which nine in ten of the products left out are in their interval.
    """
    places, needed = _places(gemms), []
    for out in _held_out(places):
        fitted = Roofline.fit(_chosen(gemms, ~out), costs[~out])
        errors = np.log(costs[out]) - fitted.log_costs(_chosen(gemms, out))
        seen = np.array([places[~out].min(0), places[~out].max(0)])
        distances = _distance(places[out], seen)
        excess = np.maximum(0.0, (errors / NORMAL_90) ** 2 - log_std**2)
        needed.append(np.sqrt(excess[distances > 0]) / distances[distances > 0])
    return float(np.quantile(np.concatenate(needed), 0.9))


def _chosen(gemms: Sequence[Product], chosen: npt.NDArray[np.bool_]) -> list[Product]:
    return [gemm for gemm, wanted in zip(gemms, chosen, strict=True) if wanted]


def _spread(residuals: Numbers) -> float:
    """Return the root mean square."""
    return float(np.sqrt((residuals**2).mean()))
