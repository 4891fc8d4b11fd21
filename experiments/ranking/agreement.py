"""How well orders of the same networks agree, and how sure that is."""

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
"""With the mean of the stand-alone trainings, which is less noisy than each of them."""
_RESAMPLES = 1000
_INTERVAL = (5.0, 95.0)


@dataclass(frozen=True)
class Alone:
    """Accuracies of networks after training each of them alone.

    Attributes:
        accuracies: Of shape (seeds, networks), in fractions; two seeds at least.
        seed: The first one; rows that hold for all of them are recorded under it.
        weights: How often each network counts, of shape (networks,); once each if None.
    """

    accuracies: Numbers
    seed: int
    weights: Numbers | None = None

    @property
    def mean(self) -> Numbers:
        """Accuracy of each network over the seeds."""
        return self.accuracies.mean(0)

    @property
    def ceiling(self) -> float:
        """Kendall's tau between two trainings, in the mean over pairs of seeds."""
        return self._mean_tau(itertools.combinations(self.accuracies, 2))

    def tau(self, shared: Numbers) -> float:
        """Kendall's tau with other scores, (K, networks), in the mean over these and the seeds."""
        return self._mean_tau(itertools.product(shared, self.accuracies))

    def quotient(self, shared: Numbers) -> float:
        """The one over the other; 1 where scores agree with a training as another one does.

        It is no number where stand-alone trainings do not agree at all.
        """
        return self.tau(shared) / self.ceiling if self.ceiling > 0 else math.nan

    def regret(self, shared: Numbers) -> float:
        """Accuracy lost by training only the three networks with the best of these scores."""
        return float(self.mean.max() - self.mean[np.argsort(-shared)[:TOP]].max())

    def interval(self, number: Callable[[Alone], float]) -> dict[str, float]:
        """Between which values a number lies in nine of ten draws of as many of the networks.

        A bootstrap over networks (Efron, 1979), since their choice is what tau depends on most;
        draws in which the number has no meaning are left out.

        Args:
            number: Of these stand-alone trainings, with other weights of the networks.
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
    """Kendall's tau-b of networks of which some may count several times, as in a bootstrap.

    Those that count twice are tied with themselves, as tau-b has it of networks that are there
    twice. No number where either side has nothing but ties.

    Args:
        a: Scores, of shape (networks,).
        b: Others of the same networks.
        weights: How often each network counts; once each if None, as `scipy.stats.kendalltau`.
    """
    counts = np.ones(len(a)) if weights is None else weights
    signs = [np.sign(each[:, None] - each) for each in (a, b)]
    of_a, agreeing, of_b = (
        counts @ (x * y) @ counts for x, y in itertools.combinations_with_replacement(signs, 2)
    )
    return float(agreeing / math.sqrt(of_a * of_b)) if of_a * of_b > 0 else math.nan


def of_alone(alone: Alone, macs: Sequence[int]) -> list[Row]:
    """What any supernet is judged against: the ceiling, and what MACs alone say."""
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
    """Agreement of one supernet's scores, (networks,), and the cost of trusting it."""
    n, one = len(shared), shared[None]
    return [
        Row("tau", method, seed, _known(alone.tau(one)), "tau", n),
        Row("tau_quotient", method, seed, _known(alone.quotient(one)), "ratio", n),
        Row(f"regret_top{TOP}", method, seed, alone.regret(shared), "fraction", n),
        Row("accuracy", method, seed, float(shared.mean()), "fraction", n),
        Row(OF_MEAN, method, seed, _known(tau_b(shared, alone.mean)), "tau", n),
    ]


def of_method(alone: Alone, shared: Numbers, rival: Numbers | None, method: str) -> list[Row]:
    """How sure the agreement of a method's supernets is, and how far it is ahead of its rival's.

    Args:
        alone: What they are compared with.
        shared: Scores of the method's supernets, (supernets, networks).
        rival: Of its rival's; None where these are not there yet.
        method: Its name.
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
    """None where a rank correlation has no meaning, e.g. because all scores are equal."""
    return value if math.isfinite(value) else None
