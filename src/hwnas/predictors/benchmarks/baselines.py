"""Baselines: methods that the default method has to beat."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import BayesianRidge

from hwnas.errors import ConfigError
from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.features.blocks import BlockScaling, blocks_of_codes, rows_of
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.methods import Forecast, KnownDevices, Measure, Rows
from hwnas.predictors.models.transfer_prior import DeviceDataset, TransferPrior

__all__ = ["mean_of_devices", "nearest_device", "ridge", "ridge_on_macs", "ridge_quantiles"]


def ridge(sources: KnownDevices) -> RidgeMethod:
    """Return a regression of log cost on counts of options and log multiply-accumulates.

    Nothing is transferred from the known devices. Positions with fewer or more options than most
    are left out.
    """
    space, codes = sources.space, sources.codes
    usual = statistics.mode(space.options)
    alike = codes[:, [i for i, options in enumerate(space.options) if options == usual]]
    columns = [(alike == option).sum(1) for option in range(usual)]
    steps = space.steps(codes)
    if steps is not None:
        columns.append(np.log(steps.macs))
    features = np.column_stack(columns).astype(np.float64)
    return RidgeMethod(BlockScaling.over(features[sources.pool])(features))


def ridge_quantiles(sources: KnownDevices) -> ResidualQuantiles:
    """Return a regression with the predictions of `ridge`, and intervals from residuals."""
    return ResidualQuantiles(ridge(sources).features)


def ridge_on_macs(sources: KnownDevices) -> RidgeMethod:
    """Return a regression of log cost on log multiply-accumulates.

    Raises:
        ConfigError: The multiply-accumulates of the table's networks are not known.
    """
    steps = sources.space.steps(sources.codes)
    if steps is None:
        raise ConfigError(
            f"method macs needs the operators of the networks, but space {sources.space.name} has "
            "only integer codes. Name the space with --space, or choose another method"
        )
    return RidgeMethod(np.log(steps.macs)[:, None])


@dataclass(frozen=True)
class RidgeMethod:
    """Bayesian ridge regression of log cost on fixed features, at random samples.

    Attributes:
        features: Features of all N networks, of shape (N, F).
    """

    features: Numbers

    def predict(
        self,
        offered: Rows,
        queries: Rows,
        samples: int,
        measure: Measure,
        rng: np.random.Generator,
    ) -> Forecast:
        """Measure random ones of the offered rows, then predict the queries."""
        rows, logs = _measured(offered, samples, measure, rng)
        model = BayesianRidge().fit(self.features[rows], logs)
        return _forecast(*model.predict(self.features[queries], return_std=True))


@dataclass(frozen=True)
class ResidualQuantiles:
    """`RidgeMethod` with the 90% quantile of its residuals as half the width of every interval.

    The residuals are leave-one-out residuals of the samples. Of n residuals, the one of rank
    0.9 (n + 1), rounded up, is used (the jackknife of Barber et al., "Predictive inference with the
    jackknife+", Annals of Statistics 2021); the largest one if there are too few.

    Attributes:
        features: Features of all N networks, of shape (N, F).
    """

    features: Numbers

    def predict(
        self,
        offered: Rows,
        queries: Rows,
        samples: int,
        measure: Measure,
        rng: np.random.Generator,
    ) -> Forecast:
        """Measure random ones of the offered rows, then predict the queries."""
        rows, logs = _measured(offered, samples, measure, rng)
        x = self.features[rows]
        residuals = []
        for i in range(len(rows)):
            kept = np.arange(len(rows)) != i
            one_less = BayesianRidge().fit(x[kept], logs[kept])
            residuals.append(abs(float(logs[i] - one_less.predict(x[i : i + 1])[0])))
        rank = min(math.ceil(0.9 * (len(rows) + 1)), len(rows))
        std = sorted(residuals)[rank - 1] / NORMAL_90
        mean = BayesianRidge().fit(x, logs).predict(self.features[queries])
        return _forecast(mean, np.full(len(queries), std))


def nearest_device(sources: KnownDevices) -> OtherDevices:
    """Return a method that rescales the known device with the ranking most like the samples'."""
    return OtherDevices(_predicted(sources), nearest=True)


def mean_of_devices(sources: KnownDevices) -> OtherDevices:
    """Return a method that rescales the mean over known devices by the samples."""
    return OtherDevices(_predicted(sources), nearest=False)


def _predicted(sources: KnownDevices) -> Numbers:
    blocks = blocks_of_codes(sources.space, sources.codes)
    pool = rows_of(blocks, sources.pool)
    logs = zip(sources.devices, np.log(sources.costs).T, strict=True)
    known = tuple(DeviceDataset(name, pool, column) for name, column in logs)
    return TransferPrior(known, pool).see(blocks).predicted


@dataclass(frozen=True)
class OtherDevices:
    """Predicted costs on known devices, rescaled for the new one.

    Attributes:
        predicted: Logarithms of costs up to a scale for each device, of shape (N, K).
        nearest: Whether to use the device whose ranking is most like that of the samples, instead
            of the mean over devices.
    """

    predicted: Numbers
    nearest: bool

    def predict(
        self,
        offered: Rows,
        queries: Rows,
        samples: int,
        measure: Measure,
        rng: np.random.Generator,
    ) -> Forecast:
        """Measure random ones of the offered rows, then predict the queries."""
        rows, logs = _measured(offered, samples, measure, rng)
        one = self.predicted.mean(1)
        if self.nearest:
            ranks = [spearmanr(column[rows], logs).statistic for column in self.predicted.T]
            one = self.predicted[:, int(np.argmax(np.nan_to_num(ranks, nan=-1.0)))]
        x = one[rows]
        slope = float(np.cov(x, logs)[0, 1] / max(np.var(x, ddof=1), 1e-12))
        slope = slope if slope > 0 else 1.0
        errors = logs - logs.mean() - slope * (x - x.mean())
        std = math.sqrt(float(errors @ errors) / max(len(rows) - 2, 1))
        mean = logs.mean() + slope * (one[queries] - x.mean())
        return _forecast(mean, np.full(len(queries), std))


def _measured(
    offered: Rows, samples: int, measure: Measure, rng: np.random.Generator
) -> tuple[Rows, Numbers]:
    """Measure random rows, and return them with the logarithms of their costs."""
    rows = rng.choice(offered, size=min(samples, len(offered)), replace=False)
    return rows, np.log([measure(int(row)).cost for row in rows])


def _forecast(mean: Numbers, std: Numbers) -> Forecast:
    reach = NORMAL_90 * std
    return Forecast(np.exp(mean), np.exp(mean - reach), np.exp(mean + reach))
