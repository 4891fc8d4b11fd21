"""Gaussian processes whose kernel is a sum of parts, each with a weight of its own.

Shapes: n rows that were observed, m rows that are asked about, P parts of the kernel, D draws of
the hyperparameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.stats import norm, qmc

__all__ = ["Mixture", "Numbers", "Parts", "Prior", "covariances", "likeliest"]

Numbers = npt.NDArray[np.float64]

_JITTER = 1e-8
_LEAST_WEIGHT = 1e-3  # draws with less, relative to the heaviest, are left out
_BOUND = 12.0  # of logarithms of variances
_CHUNK = 2000  # rows that are predicted at once, for the sake of memory
_MEAN_VARIANCE = 100.0  # of the unknown constant, in units of the observations' own variance


@dataclass(frozen=True)
class Parts:
    """Rows, as the features that each part of the kernel reads.

    Attributes:
        linear: Parts x . x', by name: features of shape (n, F), scaled such that |x|^2 is about 1.
        radial: Parts exp(-|x - x'|^2 / 2), by name: features of shape (n, F).
    """

    linear: Mapping[str, Numbers]
    radial: Mapping[str, Numbers]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all parts, the linear ones first."""
        return *self.linear, *self.radial

    def __len__(self) -> int:
        return len(next(iter({**self.linear, **self.radial}.values())))

    def rows(self, index: npt.NDArray[np.integer] | Sequence[int]) -> Parts:
        """Some of the rows."""
        chosen = np.asarray(index, dtype=np.int64)
        return Parts(
            {name: features[chosen] for name, features in self.linear.items()},
            {name: features[chosen] for name, features in self.radial.items()},
        )

    @property
    def variances(self) -> Numbers:
        """Of shape (P, n): each part between a row and itself."""
        linear = [np.einsum("nf,nf->n", x, x) for x in self.linear.values()]
        return np.array([*linear, *(np.ones(len(x)) for x in self.radial.values())])


def covariances(a: Parts, b: Parts) -> Numbers:
    """Of shape (P, len(a), len(b)): each part between rows of ``a`` and rows of ``b``."""
    linear = [x @ b.linear[name].T for name, x in a.linear.items()]
    radial = [_radial(x, b.radial[name]) for name, x in a.radial.items()]
    return np.array([*linear, *radial])


def _radial(a: Numbers, b: Numbers) -> Numbers:
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    result: Numbers = np.exp(-0.5 * np.maximum(squares, 0.0))
    return result


@dataclass(frozen=True)
class Prior:
    """What is believed of the hyperparameters before anything was observed.

    They are the logarithms of the variances of the kernel's parts and, last, of the noise; in
    units of the variance of what is observed.

    Attributes:
        mean: Of shape (P + 1,).
        std: Of shape (P + 1,), positive.
    """

    mean: Numbers
    std: Numbers

    @classmethod
    def vague(cls, parts: int) -> Prior:
        """Any part may matter, the noise is probably small."""
        return cls(np.array([*[-2.0] * parts, -5.0]), np.full(parts + 1, 3.0))

    @classmethod
    def around(cls, found: Numbers, least_std: float) -> Prior:
        """Fitted to hyperparameters (K, P + 1) that were found elsewhere."""
        return cls(found.mean(0), np.hypot(found.std(0), least_std))

    def draws(self, count: int) -> Numbers:
        """Hyperparameters of shape (count, P + 1), spread evenly (Sobol); the same every time."""
        sobol = qmc.Sobol(len(self.mean), scramble=True, rng=np.random.default_rng(0))
        uniform = np.clip(sobol.random(count), 1e-6, 1 - 1e-6)
        drawn: Numbers = self.mean + self.std * norm.ppf(uniform)
        return np.clip(drawn, -_BOUND, _BOUND)

    def log_density(self, theta: Numbers) -> float:
        """Up to a constant."""
        return float(-0.5 * (((theta - self.mean) / self.std) ** 2).sum())


def likeliest(
    parts: Parts, observed: Numbers, prior: Prior, start: Numbers | None = None
) -> Numbers:
    """The hyperparameters (P + 1,) with the largest posterior density.

    The marginal likelihood is that of Rasmussen and Williams, "Gaussian Processes for Machine
    Learning" (2006), equation 5.8, its gradient 5.9; the constant mean is integrated out.

    Args:
        parts: Of the n observed rows.
        observed: Of shape (n,), with mean 0 and variance about 1.
        prior: Over the hyperparameters.
        start: Where to start; the prior's mean if None.
    """
    grams = covariances(parts, parts)
    eye = np.eye(len(observed))

    def negative(theta: Numbers) -> tuple[float, Numbers]:
        variances = np.exp(theta)
        total = np.tensordot(variances[:-1], grams, 1) + _MEAN_VARIANCE
        total += (variances[-1] + _JITTER) * eye
        lower = cholesky(total, lower=True, check_finite=False)
        solved = cho_solve((lower, True), observed, check_finite=False)
        inverse = cho_solve((lower, True), eye, check_finite=False)
        fit = -0.5 * observed @ solved - np.log(np.diag(lower)).sum()
        slope = np.outer(solved, solved) - inverse
        gradient = np.append(np.einsum("pij,ij->p", grams, slope), np.trace(slope))
        gradient *= 0.5 * variances
        distance = (theta - prior.mean) / prior.std
        value = fit - 0.5 * (distance**2).sum()
        return -float(value), -(gradient - distance / prior.std)

    first = prior.mean if start is None else start
    bounds = [(-_BOUND, _BOUND)] * len(first)
    found = minimize(negative, first, jac=True, method="L-BFGS-B", bounds=bounds)
    result: Numbers = found.x
    return result


@dataclass(frozen=True)
class Mixture:
    """The posterior of a process, averaged over its hyperparameters.

    Hyperparameters are drawn from the prior and weighted by their marginal likelihood, so that few
    observations do not have to decide for one of them.

    Attributes:
        parts: Of the n observed rows.
        observed: Of shape (n,), in any unit.
        scale: What the hyperparameters' unit is in that of the observations: a standard deviation.
        thetas: Hyperparameters of shape (D, P + 1).
    """

    parts: Parts
    observed: Numbers
    scale: float
    thetas: Numbers

    @cached_property
    def _grams(self) -> Numbers:
        return covariances(self.parts, self.parts)

    @cached_property
    def _centre(self) -> float:
        return float(self.observed.mean())

    @cached_property
    def _solved(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Log weights (D,), hyperparameters (D, P + 1), factors (D, n, n), solutions (D, n)."""
        n = len(self.observed)
        variances = np.exp(self.thetas)
        totals = np.einsum("dp,pij->dij", variances[:, :-1], self._grams) + _MEAN_VARIANCE
        totals += (variances[:, -1] + _JITTER)[:, None, None] * np.eye(n)
        factors = np.linalg.cholesky(totals)
        values = (self.observed - self._centre) / self.scale
        halves = np.linalg.solve(factors, np.broadcast_to(values[:, None], (len(totals), n, 1)))
        logs = -0.5 * (halves[..., 0] ** 2).sum(1)
        logs -= np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
        kept = logs > logs.max() + np.log(_LEAST_WEIGHT)
        solved = np.linalg.solve(np.swapaxes(factors[kept], 1, 2), halves[kept])[..., 0]
        return logs[kept] - logs.max(), self.thetas[kept], factors[kept], solved

    @cached_property
    def weights(self) -> Numbers:
        """Of the draws that are kept, with sum 1."""
        logs = self._solved[0]
        weights: Numbers = np.exp(logs) / np.exp(logs).sum()
        return weights

    @property
    def theta(self) -> Numbers:
        """The mean of the hyperparameters' posterior, of shape (P + 1,)."""
        mean: Numbers = self.weights @ self._solved[1]
        return mean

    def predict(self, parts: Parts, noise: bool = True) -> tuple[Numbers, Numbers]:
        """Mean and standard deviation, each of shape (m,), in the unit of the observations.

        Args:
            parts: Of the m rows that are asked about.
            noise: Whether the deviation is that of a new observation, or of the function.
        """
        chunks = [
            self._predict(parts.rows(range(start, min(start + _CHUNK, len(parts)))), noise)
            for start in range(0, len(parts), _CHUNK)
        ]
        if not chunks:
            return np.zeros(0), np.zeros(0)
        means, spreads = zip(*chunks, strict=True)
        return np.concatenate(means), np.concatenate(spreads)

    def _predict(self, parts: Parts, noise: bool) -> tuple[Numbers, Numbers]:
        _, thetas, factors, solved = self._solved
        cross = covariances(parts, self.parts)
        own = parts.variances
        means, spreads = [], []
        for theta, factor, solution in zip(thetas, factors, solved, strict=True):
            variances = np.exp(theta)
            k = np.tensordot(variances[:-1], cross, 1) + _MEAN_VARIANCE
            half = solve_triangular(factor, k.T, lower=True, check_finite=False)
            left = variances[:-1] @ own + _MEAN_VARIANCE - (half * half).sum(0)
            means.append(k @ solution)
            spreads.append(np.maximum(left, 0.0) + (variances[-1] if noise else 0.0))
        table = np.array(means)
        mean = self.weights @ table
        spread = self.weights @ (np.array(spreads) + (table - mean) ** 2)
        return self._centre + self.scale * mean, self.scale * np.sqrt(spread)
