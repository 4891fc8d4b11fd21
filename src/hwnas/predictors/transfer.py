"""The default method: a Gaussian process on log cost, with what transfers and what does not.

The kernel adds what other devices' predictors say (their mean and the differences between them,
which span the same functions as their principal components), what is linear in physical features
and in counts of options, and small radial parts of both. The weights of the parts have a prior
that is learnt by predicting each known device from the others. So transfer switches itself off
where devices have little in common: its weight is then small for the known devices already, and a
few measurements that contradict it make it smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hwnas.predictors.blocks import blocks_of_codes, rows_of
from hwnas.predictors.experience import Experience, Networks, Source
from hwnas.predictors.gaussian_process import Mixture, Numbers, Parts, Prior, covariances
from hwnas.predictors.methods import Forecast, Measure, Rows, Sources
from hwnas.predictors.selection import most_informative

__all__ = ["Transfer", "fitted", "transfer"]

_DRAWS = 256
_NORMAL_90 = 1.6448536269514722  # the 95% quantile of the normal distribution
_TRIAL_ROWS = 600


def transfer(sources: Sources) -> Transfer:
    """Learn from the devices of a table."""
    blocks = blocks_of_codes(sources.space, sources.codes)
    pool = rows_of(blocks, sources.pool)
    columns = [*np.log(sources.costs).T]
    names = list(sources.devices)
    if sources.latencies_ms is not None:
        for name, column in zip(sources.devices, sources.latencies_ms.T, strict=True):
            if np.isfinite(column).all():
                columns.append(np.log(column))
                names.append(f"latency of {name}")
    known = tuple(Source(n, pool, logs) for n, logs in zip(names, columns, strict=True))
    experience = Experience(known, pool)
    return Transfer(experience, experience.see(blocks))


@dataclass(frozen=True)
class Transfer:
    """The method after it has seen the known devices.

    Attributes:
        experience: What they teach.
        networks: All networks of the table.
        widenings: Those that were worked out, by the number of samples.
    """

    experience: Experience
    networks: Networks
    widenings: dict[int, float] = field(default_factory=dict)

    def predict(
        self,
        offered: Rows,
        queries: Rows,
        samples: int,
        measure: Measure,
        rng: np.random.Generator,
    ) -> Forecast:
        """Measure the most informative of the offered rows, then predict the queries."""
        experience = self.experience
        seen = experience.parts(self.networks)
        mixture = _adapt(
            seen, experience.prior, offered, samples, lambda row: math.log(measure(row).cost)
        )
        mean, std = mixture.predict(seen.rows(queries))
        if samples not in self.widenings:
            self.widenings[samples] = widening(experience, samples)
        reach = _NORMAL_90 * self.widenings[samples] * std
        return Forecast(np.exp(mean), np.exp(mean - reach), np.exp(mean + reach))


def widening(experience: Experience, samples: int) -> float:
    """By what to stretch standard deviations, so that 90% intervals hold 90% of the costs.

    Found by playing each known device as the new one, with the others as sources.
    """
    if len(experience.sources) < 3:
        return 1.0
    ratios = [_trial(experience, k, samples) for k in range(len(experience.sources))]
    return float(np.quantile(np.concatenate(ratios), 0.9) / _NORMAL_90)


def _trial(experience: Experience, device: int, samples: int) -> Numbers:
    """Errors on a known device in predicted standard deviations."""
    source = experience.sources[device].first(_TRIAL_ROWS)
    parts = experience.parts(experience.see(source.blocks), leave_out=device)
    order = np.random.default_rng(device).permutation(len(source))
    offered, queries = np.split(order, [len(order) // 2])
    logs = source.logs
    mixture = _adapt(parts, experience.prior, offered, samples, lambda row: float(logs[row]))
    mean, std = mixture.predict(parts.rows(queries))
    errors: Numbers = np.abs(logs[queries] - mean) / std
    return errors


def _adapt(
    parts: Parts, prior: Prior, offered: Rows, samples: int, measure: Callable[[int], float]
) -> Mixture:
    """Measure the most informative of the offered rows and learn them."""
    rows = offered[most_informative(parts.rows(offered), np.exp(prior.mean), samples)]
    return fitted(parts.rows(rows), np.array([measure(int(row)) for row in rows]), prior)


def fitted(parts: Parts, logs: Numbers, prior: Prior) -> Mixture:
    """The process given logarithms of costs (n,) of the rows of ``parts``."""
    variances = np.exp(prior.mean)
    expected = np.tensordot(variances[:-1], covariances(parts, parts), 1)
    expected += variances[-1] * np.eye(len(logs))
    # The variance that values at these rows would have, were they of unit variance over the pool.
    unit = float(np.trace(expected) / len(logs) - expected.mean())
    scale = max(float(logs.std()), 1e-3) / math.sqrt(max(unit, 1e-6))
    return Mixture(parts, logs, scale, prior.draws(_DRAWS))
