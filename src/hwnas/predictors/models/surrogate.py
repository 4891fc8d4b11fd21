"""Gaussian process surrogate of evaluations, which is fast to refit.

Shapes: n observed rows, m query rows, P parts of the kernel, D draws of the hyperparameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy

from hwnas.predictors.models.gaussian_process import ABSENT, Numbers, Parts, Prior, covariances

__all__ = ["Surrogate"]

_DRAWS = 128
_PRESENT = 0.5  # share of the parts that are present in a draw
_PART = -1.5, 1.7  # mean and deviation of the logarithm of a part's variance
_NOISE = -3.0, 1.5  # the same for the variance of the noise
_KEPT = 6  # largest number of draws that are averaged
_LEAST_WEIGHT = 1e-2  # relative to the weight of the likeliest draw
_MEAN_VARIANCE = 10.0  # of the unknown constant mean, in units of the observations' variance
_JITTER = 1e-6
_LIKELIHOOD_ROWS = 128  # largest number of observations that weight the draws


@lru_cache(maxsize=16)
def _draws(parts: int) -> Numbers:
    """Return variances of the parts, 0 for absent ones, and last of the noise, (D, P + 1)."""
    means, deviations = np.array([*[_PART] * parts, _NOISE]).T
    drawn = Prior(means, deviations, _PRESENT).draws(_DRAWS)
    return np.where(drawn > ABSENT, np.exp(drawn), 0.0)


@dataclass(frozen=True)
class Surrogate:
    """Posterior of a Gaussian process, averaged over a few of the likeliest hyperparameters.

    The kernel is a sum of parts, most of which may not matter (Rasmussen and Williams, "Gaussian
    Processes for Machine Learning", 2006, chapter 5). The parts that matter are found by weighting
    fixed draws by their marginal likelihood: there is no gradient and no iteration, and the same
    observations give the same result.

    Attributes:
        parts: Features of the n observed rows.
        centre: Mean of the observations.
        scale: Standard deviation of the observations.
        weights: Weights of the draws that are kept, (D,), with sum 1.
        variances: Variances of the parts and the noise, (D, P + 1), in units of ``scale`` squared.
        roots: Inverses of the Cholesky factors, (D, n, n).
        solved: Inverses of the covariances times the observations, (D, n).
    """

    parts: Parts
    centre: float
    scale: float
    weights: Numbers
    variances: Numbers
    roots: Numbers
    solved: Numbers

    @classmethod
    def fitted(
        cls, parts: Parts, observed: Numbers, draws: tuple[Numbers, Numbers] | None = None
    ) -> Surrogate:
        """Return the process that is fitted to observations.

        Args:
            parts: Features of the n observed rows.
            observed: Observations, of shape (n,).
            draws: ``weights`` and ``variances`` of an earlier fit to reuse; found anew if None.
        """
        centre, scale = float(observed.mean()), max(float(observed.std()), 1e-9)
        values = (observed - centre) / scale
        grams = covariances(parts, parts)
        weights, variances = _likeliest(grams, values) if draws is None else draws
        factors = np.linalg.cholesky(_totals(grams, variances))
        eye = np.eye(len(values))
        roots = np.stack([scipy.linalg.solve_triangular(each, eye, lower=True) for each in factors])
        halves = roots @ values
        solved = np.einsum("dki,dk->di", roots, halves)
        return cls(parts, centre, scale, weights, variances, roots, solved)

    @property
    def draws(self) -> tuple[Numbers, Numbers]:
        """Weights and variances of the draws, for reuse in a later fit."""
        return self.weights, self.variances

    def used(self, draws: int | None = None) -> npt.NDArray[np.bool_]:
        """Return whether each part of the kernel matters to the likeliest draws, (P,)."""
        return np.asarray((self.variances[:draws, :-1] > 0).any(0))

    @property
    def noise(self) -> float:
        """Variance of an observation around the function, in the observations' unit squared."""
        return self.scale**2 * float(self.weights @ self.variances[:, -1])

    def predict(self, parts: Parts) -> tuple[Numbers, Numbers]:
        """Return mean and standard deviation of the function, each of shape (m,)."""
        return self.predict_from(covariances(parts, self.parts), parts.variances)

    def predict_from(
        self, cross: Numbers, own: Numbers, draws: int | None = None
    ) -> tuple[Numbers, Numbers]:
        """Return mean and standard deviation (m,) from covariances.

        Surrogates of the same rows share these covariances.

        Args:
            cross: Covariances of each part between query rows and observed rows, (P, m, n).
            own: Variances of each part at the query rows, (P, m).
            draws: Number of the likeliest hyperparameters to use; all that are kept if None.
        """
        means, lefts = [], []
        for variances, root, solved in self._kept(draws):
            covariance = np.tensordot(variances[:-1], cross, 1) + _MEAN_VARIANCE
            means.append(covariance @ solved)
            reduced = covariance @ root.T
            left = variances[:-1] @ own + _MEAN_VARIANCE - np.einsum("mi,mi->m", reduced, reduced)
            lefts.append(np.maximum(left, 0.0))
        each, weights = np.array(means), self.weights[:draws] / self.weights[:draws].sum()
        mean = weights @ each
        variance = weights @ (np.array(lefts) + (each - mean) ** 2)
        return self.centre + self.scale * mean, self.scale * np.sqrt(variance)

    def joint_from(self, cross: Numbers, between: Numbers) -> tuple[Numbers, Numbers]:
        """Return mean (m,) and covariance (m, m) of the function, from covariances.

        Args:
            cross: Covariances as for `predict_from`.
            between: Covariances of each part among the query rows, (P, m, m).
        """
        means, lefts = [], []
        for variances, root, solved in self._kept(None):
            covariance = np.tensordot(variances[:-1], cross, 1) + _MEAN_VARIANCE
            means.append(covariance @ solved)
            reduced = covariance @ root.T
            total = np.tensordot(variances[:-1], between, 1) + _MEAN_VARIANCE
            lefts.append(total - reduced @ reduced.T)
        each = np.array(means)
        mean = self.weights @ each
        apart = each - mean
        covariance = np.tensordot(self.weights, np.array(lefts), 1)
        covariance += (self.weights[:, None] * apart).T @ apart
        return self.centre + self.scale * mean, self.scale**2 * covariance

    def _kept(self, draws: int | None) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield variances, root and solution of each of the likeliest draws, which come first."""
        yield from zip(self.variances[:draws], self.roots, self.solved, strict=False)


def _totals(grams: Numbers, variances: Numbers) -> Numbers:
    """Return the covariances of the observations, of shape (D, n, n)."""
    totals: Numbers = np.tensordot(variances[:, :-1], grams, 1) + _MEAN_VARIANCE
    totals += (variances[:, -1] + _JITTER)[:, None, None] * np.eye(grams.shape[1])
    return totals


def _likeliest(grams: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Return weights (D,) and variances (D, P + 1) of the draws that fit the observations best."""
    rows = _spread(len(values), _LIKELIHOOD_ROWS)
    grams, values = grams[:, rows][:, :, rows], values[rows]
    variances = _draws(len(grams))
    factors = np.linalg.cholesky(_totals(grams, variances))
    halves = np.array([scipy.linalg.solve_triangular(each, values, lower=True) for each in factors])
    logs = -0.5 * (halves**2).sum(1) - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
    best = np.argsort(-logs)[:_KEPT]
    weights = np.exp(logs[best] - logs[best[0]])
    best, weights = best[weights > _LEAST_WEIGHT], weights[weights > _LEAST_WEIGHT]
    return weights / weights.sum(), variances[best]


def _spread(count: int, most: int) -> npt.NDArray[np.int64] | Sequence[int]:
    """Return all indices, or `most` of them, evenly spread."""
    return range(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)
