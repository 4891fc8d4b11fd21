"""How wide intervals have to be, so that 90% of them hold what is measured.

A process is too sure of itself where the new device is unlike the known ones, and not sure enough
where it is like them. Two things tell: how well intervals held when each known device was played
as the new one, and how well the process foresees each of the few measurements from the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.experience import Experience, Widening
from hwnas.predictors.gaussian_process import Mixture, Numbers, Parts, Prior
from hwnas.predictors.methods import Rows
from hwnas.predictors.selection import most_informative

__all__ = ["adapted", "learn_widening"]

_TRIAL_ROWS = 600
_TRIALS = 2  # of each known device
_DOUBT = 0.8  # that surprise says anything: a ridge, in units of squared logarithms


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


def learn_widening(experience: Experience, samples: int) -> Widening:
    """Play each known device as the new one, with the others as sources."""
    devices = [k for k in range(len(experience.sources)) if len(experience.others(k)) > 1]
    if not devices:
        return Widening()
    families = len({experience.sources[k].family or k for k in devices})
    trials = [_trial(experience, k, samples, s) for k in devices for s in range(_TRIALS)]
    surprises = np.log([surprise for surprise, _ in trials])
    needed = np.log([np.quantile(errors, 0.9) / NORMAL_90 for _, errors in trials])
    spread = surprises - surprises.mean()
    slope = float(spread @ needed / (spread @ spread + _DOUBT))
    exponent = min(max(slope, 0.0), 1.0)
    scaled = [errors / surprise**exponent for surprise, errors in trials]
    factor = float(np.quantile(np.concatenate(scaled), 0.9) / NORMAL_90)
    return Widening(factor * (1 + 1 / families), exponent)  # it is unlike all of them


def _trial(experience: Experience, device: int, samples: int, seed: int) -> tuple[float, Numbers]:
    """Surprise of the process, and errors on a known device in predicted standard deviations."""
    source, networks = experience.see_first(experience.sources[device], _TRIAL_ROWS)
    parts = experience.parts(networks, experience.others(device))
    order = np.random.default_rng([seed, device]).permutation(len(source))
    offered, queries = np.split(order, [len(order) // 2])
    logs = source.logs
    process = adapted(parts, experience.prior, offered, samples, lambda row: float(logs[row]))
    mean, std = process.predict(parts.rows(queries))
    return process.surprise, np.abs(logs[queries] - mean) / std
