"""Rank agreement of scores of the same networks, with its uncertainty."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from experiments.record import Row

__all__ = ["Alone", "Numbers", "of_alone", "of_method", "of_supernet", "tau_b"]

Numbers = npt.NDArray[np.float64]
TOP = 3
OF_MEAN = "tau with the mean"
"""Metric of the tau with the mean of the stand-alone trainings, which is less noisy than each."""
_RESAMPLES = 1000
_INTERVAL = (5.0, 95.0)


@dataclass(frozen=True)
class Alone:
    """Accuracies of networks after stand-alone training.

    Attributes:
        accuracies: Accuracies in fractions, of shape (seeds, networks); at least two seeds.
        seed: First seed; rows that hold for all seeds are recorded under it.
        weights: Number of times that each network counts, of shape (networks,); once each if None.
    """

    accuracies: Numbers
    seed: int
    weights: Numbers | None = None

    @property
    def mean(self) -> Numbers:
        """Accuracy of each network, averaged over the seeds."""
        return self.accuracies.mean(0)

    @property
    def ceiling(self) -> float:
        """Kendall's tau between two trainings, averaged over pairs of seeds."""
        return self._mean_tau(itertools.combinations(self.accuracies, 2))

    def tau(self, shared: Numbers) -> float:
        """Return the mean Kendall's tau of other scores, (K, networks), with those of all seeds."""
        return self._mean_tau(itertools.product(shared, self.accuracies))

    def quotient(self, shared: Numbers) -> float:
        """Return the tau with other scores divided by the ceiling.

        It is 1 where the scores agree with a training as well as another training does. It is NaN
        where stand-alone trainings do not agree at all.
        """
        return self.tau(shared) / self.ceiling if self.ceiling > 0 else math.nan

    def regret(self, shared: Numbers) -> float:
        """Return the accuracy lost by training only the three networks with the best scores."""
        return float(self.mean.max() - self.mean[np.argsort(-shared)[:TOP]].max())

    def interval(self, number: Callable[[Alone], float]) -> dict[str, float]:
        """Return the 90% interval of a number over bootstrap draws of the networks.

        The bootstrap (Efron, 1979) is over networks, since tau depends most on their choice. Draws
        in which the number is undefined are left out.

        Args:
            number: Function that computes the number from stand-alone trainings with other weights
                of the networks.
        """
        rng, count = np.random.default_rng(0), self.accuracies.shape[1]
        draws = rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
        found = [number(replace(self, weights=weights.astype(float))) for weights in draws]
        found = [value for value in found if math.isfinite(value)]
        if not found:
            return {}
        least, most = np.percentile(found, _INTERVAL)
        return {"least": float(least), "most": float(most)}

    def _mean_tau(self, pairs: Iterable[tuple[Numbers, ...]]) -> float:
        return float(np.mean([tau_b(*pair, self.weights) for pair in pairs]))


def tau_b(a: Numbers, b: Numbers, weights: Numbers | None = None) -> float:
    """Return Kendall's tau-b of networks that may count several times, as in a bootstrap.

    A network that counts twice is tied with itself, as in tau-b of a list that has it twice. The
    result is NaN where either side has nothing but ties.

    Args:
        a: Scores, of shape (networks,).
        b: Other scores of the same networks.
        weights: Number of times that each network counts; once each if None, as in
            `scipy.stats.kendalltau`.
    """
    counts = np.ones(len(a)) if weights is None else weights
    signs = [np.sign(each[:, None] - each) for each in (a, b)]
    of_a, agreeing, of_b = (
        counts @ (x * y) @ counts for x, y in itertools.combinations_with_replacement(signs, 2)
    )
    return float(agreeing / math.sqrt(of_a * of_b)) if of_a * of_b > 0 else math.nan


def of_alone(alone: Alone, macs: Sequence[int]) -> list[Row]:
    """Return the reference rows of every supernet: the ceiling, and the agreement of MACs alone."""
    seed, mean = alone.seed, alone.mean
    n = len(mean)
    sizes = np.array([macs], dtype=float)
    reach = {"least": float(mean.min()), "most": float(mean.max())}
    ceiling = alone.interval(lambda some: some.ceiling)
    quotient = alone.interval(lambda some: some.quotient(sizes))
    return [
        Row("tau", "alone, another seed", seed, _known(alone.ceiling), "tau", n, ceiling),
        Row("accuracy", "alone, another seed", seed, float(mean.mean()), "fraction", n, reach),
        Row("tau", "macs", seed, _known(alone.tau(sizes)), "tau", n),
        Row("tau_quotient", "macs", seed, _known(alone.quotient(sizes)), "ratio", n),
        Row("90 % interval", "macs", seed, _known(alone.quotient(sizes)), "ratio", n, quotient),
        Row(f"regret_top{TOP}", "macs", seed, alone.regret(sizes[0]), "fraction", n),
        Row(OF_MEAN, "macs", seed, _known(tau_b(sizes[0], mean)), "tau", n),
    ]


def of_supernet(alone: Alone, shared: Numbers, method: str, seed: int) -> list[Row]:
    """Return the agreement of a supernet's scores, (networks,), and the regret of using them."""
    n, one = len(shared), shared[None]
    return [
        Row("tau", method, seed, _known(alone.tau(one)), "tau", n),
        Row("tau_quotient", method, seed, _known(alone.quotient(one)), "ratio", n),
        Row(f"regret_top{TOP}", method, seed, alone.regret(shared), "fraction", n),
        Row("accuracy", method, seed, float(shared.mean()), "fraction", n),
        Row(OF_MEAN, method, seed, _known(tau_b(shared, alone.mean)), "tau", n),
    ]


def of_method(alone: Alone, shared: Numbers, rival: Numbers | None, method: str) -> list[Row]:
    """Return the interval of a method's agreement, and of its lead over the baseline method.

    Args:
        alone: Stand-alone trainings.
        shared: Scores of the method's supernets, (supernets, networks).
        rival: Scores of the baseline method's supernets; None if they do not exist yet.
        method: Name of the method.
    """
    n, seed = shared.shape[1], alone.seed
    sure = alone.interval(lambda some: some.quotient(shared))
    found = [Row("90 % interval", method, seed, _known(alone.quotient(shared)), "ratio", n, sure)]
    if rival is not None and rival is not shared:
        ahead = alone.tau(shared) - alone.tau(rival)
        sure = alone.interval(lambda some: some.tau(shared) - some.tau(rival))
        found.append(Row("tau above uniform's", method, seed, _known(ahead), "tau", n, sure))
    return found


def _known(value: float) -> float | None:
    """Return a rank correlation, or None where it is undefined, e.g. if all scores are equal."""
    return value if math.isfinite(value) else None
