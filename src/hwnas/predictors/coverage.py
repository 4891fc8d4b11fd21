"""Conformal calibration of intervals, so that 90% of them hold what is measured.

Each known device is played as the new one: a process learns a few of its networks, with the devices
of other families as sources, and predicts others. What the standard deviations have to be
multiplied by, so that nine in ten of all these predictions hold, is the scale of a new device. Two
numbers that a process has without any further measurement adapt it to the device: how well each
measurement is predicted from the others (`Mixture.surprise`), and how sure the process is of
itself (`Mixture.doubt`). Their powers are learnt on the same trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.experience import Experience, Widening
from hwnas.predictors.gaussian_process import Mixture, Numbers, Parts, Prior
from hwnas.predictors.methods import Rows
from hwnas.predictors.selection import most_informative

__all__ = ["adapted", "learn_widening"]

_TRIAL_ROWS = 600
_TRIALS = 4  # of each known device
_EXPECTED = np.array([0.7, 0.0])  # powers of surprise and doubt, before any trial
_RIDGE = 0.3  # weight of what is expected, in units of squared logarithms and known devices
_POWERS = np.array([[0.0, -1.0], [1.0, 1.0]])  # least and largest


def adapted(
    parts: Parts, prior: Prior, offered: Rows, samples: int, measure: Callable[[int], float]
) -> Mixture:
    """Measure the most informative of the offered rows and learn them.

    Args:
        parts: Of all rows.
        prior: Over the hyperparameters.
        offered: Rows that may be measured.
        samples: How many to measure.
        measure: Gives the logarithm of a row's cost.
    """
    rows = offered[most_informative(parts.rows(offered), np.exp(prior.mean), samples)]
    return Mixture.fitted(parts.rows(rows), np.array([measure(int(row)) for row in rows]), prior)


@dataclass(frozen=True)
class _Trial:
    """A known device that was played as the new one.

    Attributes:
        surprise: Of the process.
        doubt: Of the process.
        errors: Absolute errors on networks that were not measured, in predicted deviations.
    """

    surprise: float
    doubt: float
    errors: Numbers


def learn_widening(experience: Experience, samples: int) -> Widening | None:
    """Play each known device as the new one, with the others as sources.

    Args:
        experience: The known devices.
        samples: Measurements that are taken of a new device.

    Returns:
        The scale with which nine in ten of the intervals hold, over all devices and trials; None
        where no device has two others of other families to learn it from.
    """
    devices = [k for k in range(len(experience.sources)) if len(experience.others(k)) > 1]
    if not devices:
        return None
    trials = [_trial(experience, k, samples, s) for k in devices for s in range(_TRIALS)]
    known = np.log([(trial.surprise, trial.doubt) for trial in trials])
    needed = np.log([np.quantile(trial.errors, 0.9) / NORMAL_90 for trial in trials])
    exponent, doubt_exponent = powers = _powers(known, needed)
    scales = np.exp(known @ powers)
    scaled = [trial.errors / scale for trial, scale in zip(trials, scales, strict=True)]
    factor = float(np.quantile(np.concatenate(scaled), 0.9) / NORMAL_90)
    least, most = np.exp(known[:, 1].min()), np.exp(known[:, 1].max())
    return Widening(factor, float(exponent), float(doubt_exponent), (float(least), float(most)))


def _powers(known: Numbers, needed: Numbers) -> Numbers:
    """Ridge regression of the scales that were needed, towards the powers that are expected.

    Args:
        known: Logarithms of surprise and doubt in each trial, of shape (trials, 2).
        needed: Logarithms of the scale with which nine in ten intervals hold, of shape (trials,).
    """
    spread = known - known.mean(0)
    ridge = _RIDGE * _TRIALS
    found = np.linalg.solve(
        spread.T @ spread + ridge * np.eye(2),
        spread.T @ (needed - needed.mean()) + ridge * _EXPECTED,
    )
    clipped: Numbers = np.clip(found, *_POWERS)
    return clipped


def _trial(experience: Experience, device: int, samples: int, seed: int) -> _Trial:
    """Learn some networks of a known device as if it were new, and predict the others."""
    source, networks = experience.see_first(experience.sources[device], _TRIAL_ROWS)
    parts = experience.parts(networks, experience.others(device))
    rows = np.arange(len(source))
    if source.measurable is not None and source.measurable.sum() >= 2 * samples:
        rows = rows[source.measurable]
    order = np.random.default_rng([seed, device]).permutation(rows)
    offered, queries = np.split(order, [len(order) // 2])
    logs = source.logs
    process = adapted(parts, experience.prior, offered, samples, lambda row: float(logs[row]))
    mean, std = process.predict(parts.rows(queries))
    return _Trial(process.surprise, process.doubt, np.abs(logs[queries] - mean) / std)
