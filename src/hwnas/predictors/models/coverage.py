"""Conformal calibration of prediction intervals, so that 90% of them hold the measured cost.

Each known device is treated as a new one: a Gaussian process learns a few of its networks, with the
devices of other families as sources, and predicts other networks. The scale of a new device is the
factor on the standard deviations with which nine in ten of all these intervals contain the measured
cost. Two numbers that a process gives without further measurements adapt the scale to the device:
how well each measurement is predicted from the others (`Mixture.surprise`), and how large a
deviation the process predicts (`Mixture.doubt`). The powers of both are learnt on the same trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hwnas.predictors.devices.selection import most_informative
from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.models.gaussian_process import Mixture, Numbers, Parts, Prior
from hwnas.predictors.models.methods import Rows
from hwnas.predictors.models.transfer_prior import ConformalScale, TransferPrior

__all__ = ["adapted", "learn_widening"]

_TRIAL_ROWS = 600
_TRIALS = 4  # trials of each known device
_EXPECTED = np.array([0.7, 0.0])  # powers of surprise and doubt, before any trial
_RIDGE = 0.3  # weight of the expected powers, in units of squared logarithms and known devices
_POWERS = np.array([[0.0, -1.0], [1.0, 1.0]])  # least and largest powers


def adapted(
    parts: Parts, prior: Prior, offered: Rows, samples: int, measure: Callable[[int], float]
) -> Mixture:
    """Measure the most informative of the offered rows, and fit a process to them.

    Args:
        parts: Features of all rows.
        prior: Prior over the hyperparameters.
        offered: Rows that may be measured.
        samples: Number of rows to measure.
        measure: Function that returns the logarithm of a row's cost.
    """
    rows = offered[most_informative(parts.rows(offered), np.exp(prior.mean), samples)]
    return Mixture.fitted(parts.rows(rows), np.array([measure(int(row)) for row in rows]), prior)


@dataclass(frozen=True)
class _Trial:
    """Result of treating a known device as a new one.

    Attributes:
        surprise: Surprise of the process.
        doubt: Doubt of the process.
        errors: Absolute errors on networks that were not measured, in predicted deviations.
    """

    surprise: float
    doubt: float
    errors: Numbers


def learn_widening(transfer_prior: TransferPrior, samples: int) -> ConformalScale | None:
    """Learn the scale of intervals by treating each known device as new, given the others.

    Args:
        transfer_prior: Known devices.
        samples: Number of measurements that are taken of a new device.

    Returns:
        Scale with which nine in ten of the intervals contain the cost, over all devices and trials;
        None if no device has two devices of other families to learn from.
    """
    devices = [k for k in range(len(transfer_prior.sources)) if len(transfer_prior.others(k)) > 1]
    if not devices:
        return None
    trials = [_trial(transfer_prior, k, samples, s) for k in devices for s in range(_TRIALS)]
    known = np.log([(trial.surprise, trial.doubt) for trial in trials])
    needed = np.log([np.quantile(trial.errors, 0.9) / NORMAL_90 for trial in trials])
    exponent, doubt_exponent = powers = _powers(known, needed)
    scales = np.exp(known @ powers)
    scaled = [trial.errors / scale for trial, scale in zip(trials, scales, strict=True)]
    factor = float(np.quantile(np.concatenate(scaled), 0.9) / NORMAL_90)
    least, most = np.exp(known[:, 1].min()), np.exp(known[:, 1].max())
    return ConformalScale(
        factor, float(exponent), float(doubt_exponent), (float(least), float(most))
    )


def _powers(known: Numbers, needed: Numbers) -> Numbers:
    """Return the powers of surprise and doubt that give the needed scales.

    They follow by ridge regression, which shrinks them towards the expected powers.

    Args:
        known: Logarithms of surprise and doubt in each trial, of shape (trials, 2).
        needed: Logarithms of the scale with which nine in ten intervals contain the cost, of shape
            (trials,).
    """
    spread = known - known.mean(0)
    ridge = _RIDGE * _TRIALS
    found = np.linalg.solve(
        spread.T @ spread + ridge * np.eye(2),
        spread.T @ (needed - needed.mean()) + ridge * _EXPECTED,
    )
    clipped: Numbers = np.clip(found, *_POWERS)
    return clipped


def _trial(transfer_prior: TransferPrior, device: int, samples: int, seed: int) -> _Trial:
    """Learn some networks of a known device as if it were new, and predict the others."""
    source, networks = transfer_prior.see_first(transfer_prior.sources[device], _TRIAL_ROWS)
    parts = transfer_prior.parts(networks, transfer_prior.others(device))
    rows = np.arange(len(source))
    if source.measurable is not None and source.measurable.sum() >= 2 * samples:
        rows = rows[source.measurable]
    order = np.random.default_rng([seed, device]).permutation(rows)
    offered, queries = np.split(order, [len(order) // 2])
    logs = source.logs
    process = adapted(parts, transfer_prior.prior, offered, samples, lambda row: float(logs[row]))
    mean, std = process.predict(parts.rows(queries))
    return _Trial(process.surprise, process.doubt, np.abs(logs[queries] - mean) / std)
