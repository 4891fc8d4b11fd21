"""Gaussian processes whose kernel is a sum of parts, each with a weight of its own.

Shapes: n observed rows, m query rows, P parts of the kernel, D draws of the hyperparameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy
from scipy.special import ndtri

__all__ = ["ABSENT", "Mixture", "Numbers", "Parts", "Prior", "covariances", "likeliest", "means"]

Numbers = npt.NDArray[np.float64]

_JITTER = 1e-8
_LEAST_WEIGHT = 1e-3  # draws with less weight, relative to the largest, are left out
_BOUND = 12.0  # of logarithms of variances
ABSENT = -_BOUND
"""Logarithm of the variance of a part that is absent from a draw."""
_DRAWS = 256
_SCEPTICS = 64
_PRESENT = 0.5  # share of the parts that are present in a draw from the vague prior
_LEAST_SURPRISE = 0.1
_NORMAL_MEAN = float(np.sqrt(2 / np.pi))  # mean absolute value of a standard normal variable
_CHUNK = 4096  # rows that are predicted at once, to limit memory
_MEAN_VARIANCE = 100.0  # of the unknown constant mean, in units of the observations' variance


@dataclass(frozen=True)
class Parts:
    """Rows as inputs of a kernel: the features of each part.

    Attributes:
        linear: Features of the parts x . x', by name, of shape (n, F), scaled such that |x|^2 is
            about 1.
        radial: Features of the parts exp(-|x - x'|^2 / 2), by name, of shape (n, F).
    """

    linear: Mapping[str, Numbers]
    radial: Mapping[str, Numbers]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parts, the linear ones first."""
        return *self.linear, *self.radial

    def __len__(self) -> int:
        return len(next(iter({**self.linear, **self.radial}.values())))

    def rows(self, index: npt.NDArray[np.integer] | Sequence[int]) -> Parts:
        """Return some of the rows."""
        chosen = np.asarray(index, dtype=np.int64)
        return Parts(
            {name: features[chosen] for name, features in self.linear.items()},
            {name: features[chosen] for name, features in self.radial.items()},
        )

    def beside(self, others: Parts) -> Parts:
        """Return the same rows with further parts: linear after the linear, radial ones last."""
        return Parts({**self.linear, **others.linear}, {**self.radial, **others.radial})

    @property
    def variances(self) -> Numbers:
        """Covariance of each row with itself in each part, of shape (P, n)."""
        linear = [np.einsum("nf,nf->n", x, x) for x in self.linear.values()]
        return np.array([*linear, *(np.ones(len(x)) for x in self.radial.values())])


def covariances(a: Parts, b: Parts, used: npt.NDArray[np.bool_] | None = None) -> Numbers:
    """Return covariances (P, len(a), len(b)) of each part between rows of ``a`` and of ``b``.

    Args:
        a: First rows.
        b: Second rows.
        used: Whether each part matters, (P,); the covariances of others are 0. All if None.
    """
    found = np.zeros((len(a.names), len(a), len(b)))
    for place, name in enumerate(a.names):
        if used is not None and not used[place]:
            continue
        if name in a.linear:
            np.matmul(a.linear[name], b.linear[name].T, out=found[place])
        else:
            _radial(a.radial[name], b.radial[name], found[place])
    return found


def _radial(a: Numbers, b: Numbers, out: Numbers | None = None) -> Numbers:
    negative: Numbers = np.matmul(a, b.T, out=out)
    negative -= 0.5 * (a * a).sum(1)[:, None]
    negative -= 0.5 * (b * b).sum(1)[None]
    np.minimum(negative, 0.0, out=negative)
    result: Numbers = np.exp(negative, out=negative)
    return result


@dataclass(frozen=True)
class Prior:
    """Prior over the hyperparameters of a process.

    The hyperparameters are the logarithms of the variances of the kernel's parts and, last, of the
    noise, in units of the variance of the observations.

    Attributes:
        mean: Means, of shape (P + 1,).
        std: Standard deviations, of shape (P + 1,); all positive, or all 0 for fixed
            hyperparameters.
        present: Probability that a part is present; only `draws` uses it.
    """

    mean: Numbers
    std: Numbers
    present: float = 1.0

    @classmethod
    def vague(cls, parts: int) -> Prior:
        """Return a prior by which only some parts matter, and the noise is probably small."""
        return cls(np.array([*[-2.0] * parts, -5.0]), np.full(parts + 1, 3.0), _PRESENT)

    @classmethod
    def around(cls, found: Numbers, least_std: float) -> Prior:
        """Return a prior that is fitted to hyperparameters (K, P + 1) that were found elsewhere."""
        return cls(found.mean(0), np.hypot(found.std(0), least_std))

    def with_vague(self, places: Sequence[int]) -> Prior:
        """Return the prior of a kernel that has further parts, of which nothing is known.

        Args:
            places: Indices of the parts of this prior before which a new part is inserted.
        """
        new = Prior.vague(1)
        means, stds = (
            np.insert(a, places, b[0]) for a, b in [(self.mean, new.mean), (self.std, new.std)]
        )
        return Prior(means, stds, self.present)

    def draws(self, count: int) -> Numbers:
        """Return hyperparameters (count, P + 1), spread evenly (Sobol) and the same every time.

        Fixed hyperparameters are only one draw.
        """
        if not self.std.any():
            return self.mean[None]
        parts = len(self.mean) - 1
        sobol = scipy.stats.qmc.Sobol(2 * parts + 1, scramble=True, rng=np.random.default_rng(0))
        uniform = np.clip(sobol.random(count), 1e-6, 1 - 1e-6)
        drawn: Numbers = self.mean + self.std * ndtri(uniform[:, : parts + 1])
        drawn = np.clip(drawn, -_BOUND, _BOUND)
        drawn[:, :parts][uniform[:, parts + 1 :] > self.present] = ABSENT
        return drawn

    def log_density(self, theta: Numbers) -> float:
        """Return the logarithm of the density, up to a constant."""
        return float(-0.5 * (((theta - self.mean) / self.std) ** 2).sum())


def likeliest(
    parts: Parts, observed: Numbers, prior: Prior, start: Numbers | None = None
) -> Numbers:
    """Return the hyperparameters (P + 1,) with the largest posterior density.

    The marginal likelihood is that of Rasmussen and Williams, "Gaussian Processes for Machine
    Learning" (2006), equation 5.8, its gradient 5.9; the constant mean is integrated out.

    Args:
        parts: Features of the n observed rows.
        observed: Observations of shape (n,), with mean 0 and variance about 1.
        prior: Prior over the hyperparameters.
        start: Initial hyperparameters; the prior's mean if None.
    """
    grams = covariances(parts, parts)
    eye = np.eye(len(observed))

    def negative(theta: Numbers) -> tuple[float, Numbers]:
        variances = np.exp(theta)
        total = np.tensordot(variances[:-1], grams, 1) + _MEAN_VARIANCE
        total += (variances[-1] + _JITTER) * eye
        lower = scipy.linalg.cholesky(total, lower=True, check_finite=False)
        solved = scipy.linalg.cho_solve((lower, True), observed, check_finite=False)
        inverse = scipy.linalg.cho_solve((lower, True), eye, check_finite=False)
        fit = -0.5 * observed @ solved - np.log(np.diag(lower)).sum()
        slope = np.outer(solved, solved) - inverse
        gradient = np.append(np.einsum("pij,ij->p", grams, slope), np.trace(slope))
        gradient *= 0.5 * variances
        distance = (theta - prior.mean) / prior.std
        value = fit - 0.5 * (distance**2).sum()
        return -float(value), -(gradient - distance / prior.std)

    first = prior.mean if start is None else start
    bounds = [(-_BOUND, _BOUND)] * len(first)
    found = scipy.optimize.minimize(negative, first, jac=True, method="L-BFGS-B", bounds=bounds)
    result: Numbers = found.x
    return result


@dataclass(frozen=True)
class Mixture:
    """Posterior of a Gaussian process, averaged over its hyperparameters.

    Hyperparameters are drawn from the prior and weighted by their marginal likelihood, so that few
    observations do not have to decide for one of them.

    Attributes:
        parts: Features of the n observed rows.
        observed: Observations of shape (n,), in any unit.
        scale: Standard deviation that is the unit of the hyperparameters, in the observations'
            unit.
        thetas: Hyperparameters of shape (D, P + 1).
    """

    parts: Parts
    observed: Numbers
    scale: float
    thetas: Numbers

    @classmethod
    def fitted(cls, parts: Parts, observed: Numbers, prior: Prior) -> Mixture:
        """Return the process given observations (n,), with hyperparameters drawn from a prior."""
        variances = np.exp(prior.mean)
        expected = np.tensordot(variances[:-1], covariances(parts, parts), 1)
        expected += variances[-1] * np.eye(len(observed))
        # Expected variance at these rows of a function that has unit variance in general.
        unit = float(np.trace(expected) / len(observed) - expected.mean())
        scale = max(float(observed.std()), 1e-3) / np.sqrt(max(unit, 1e-6))
        thetas = prior.draws(_DRAWS)
        if len(thetas) > 1:  # some draws ignore the prior, in case it is wrong here
            thetas = np.vstack([thetas, Prior.vague(len(parts.names)).draws(_SCEPTICS)])
        return cls(parts, observed, float(scale), thetas)

    @cached_property
    def centre(self) -> float:
        """Mean of the observations."""
        return float(self.observed.mean())

    @cached_property
    def _solved(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Log weights (D,), hyperparameters (D, P + 1), inverses (D, n, n), solutions (D, n)."""
        n = len(self.observed)
        variances = np.exp(self.thetas)
        grams = covariances(self.parts, self.parts)
        totals = np.einsum("dp,pij->dij", variances[:, :-1], grams) + _MEAN_VARIANCE
        totals += (variances[:, -1] + _JITTER)[:, None, None] * np.eye(n)
        factors = np.linalg.cholesky(totals)
        values = (self.observed - self.centre) / self.scale
        halves = np.linalg.solve(factors, np.broadcast_to(values[:, None], (len(totals), n, 1)))
        logs = -0.5 * (halves[..., 0] ** 2).sum(1)
        logs -= np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
        kept = logs > logs.max() + np.log(_LEAST_WEIGHT)
        roots = np.linalg.inv(factors[kept])
        solved = np.einsum("dki,dk->di", roots, halves[kept, :, 0])
        return (
            logs[kept] - logs.max(),
            self.thetas[kept],
            np.swapaxes(roots, 1, 2) @ roots,
            solved,
        )

    @cached_property
    def weights(self) -> Numbers:
        """Weights of the draws that are kept, with sum 1."""
        logs = self._solved[0]
        weights: Numbers = np.exp(logs) / np.exp(logs).sum()
        return weights

    @property
    def theta(self) -> Numbers:
        """Posterior mean of the hyperparameters, of shape (P + 1,)."""
        mean: Numbers = self.weights @ self._solved[1]
        return mean

    @cached_property
    def _variances(self) -> Numbers:
        """Variances of the parts, of the unknown mean and, last, of the noise, (D, P + 2)."""
        variances = np.exp(self._solved[1])
        return np.insert(variances, -1, _MEAN_VARIANCE, axis=1)

    @cached_property
    def coefficients(self) -> Numbers:
        """Coefficients (P + 1, n) of the covariances of the parts and, last, of 1.

        The posterior mean is linear in the covariances for any hyperparameters, so the mean over
        draws is linear, too.
        """
        found: Numbers = np.einsum(
            "d,dp,dn->pn", self.weights, self._variances[:, :-1], self._solved[3]
        )
        return found

    @cached_property
    def _reduction(self) -> Numbers:
        """Quadratic form of covariances that reduces variances, of shape ((P + 1) n, (P + 1) n).

        It is the mean over draws of k' K^-1 k, less the variance over draws of the mean.
        """
        _, _, inverses, solutions = self._solved
        variances, n = self._variances[:, :-1], len(self.observed)
        count = variances.shape[1]
        pairs = self.weights[:, None] * (variances[:, :, None] * variances[:, None]).reshape(
            len(variances), -1
        )
        blocks = (pairs.T @ inverses.reshape(len(inverses), -1)).reshape(count, count, n, n)
        lost = blocks.transpose(0, 2, 1, 3).reshape(count * n, count * n)
        draws = (variances[:, :, None] * solutions[:, None]).reshape(len(variances), -1)
        apart = draws - self.coefficients.ravel()
        reduction: Numbers = lost - (self.weights[:, None] * apart).T @ apart
        return reduction

    @cached_property
    def left_out(self) -> tuple[Numbers, Numbers]:
        """Errors of predicting each observation from the others, and their predicted deviations.

        They follow from Rasmussen and Williams (2006), equations 5.10 to 5.12. Each has the shape
        (n,) and the unit of the observations.
        """
        _, _, inverses, solutions = self._solved
        precisions = np.diagonal(inverses, axis1=1, axis2=2)
        errors = solutions / precisions
        mean = self.weights @ errors
        variance = self.weights @ (1 / precisions + (errors - mean) ** 2)
        return self.scale * mean, self.scale * np.sqrt(variance)

    @cached_property
    def surprise(self) -> float:
        """Mean absolute error of leaving out each observation, in predicted deviations.

        It is relative to that of a normal distribution, so about 1 if the process is right; at
        least 0.1.
        """
        errors, stds = self.left_out
        return max(float((np.abs(errors) / stds).mean()) / _NORMAL_MEAN, _LEAST_SURPRISE)

    @cached_property
    def doubt(self) -> float:
        """Geometric mean of the deviations that are predicted when each observation is left out."""
        return float(np.exp(np.log(self.left_out[1]).mean()))

    @cached_property
    def own_scale(self) -> float:
        """Factor on deviations with which 90% intervals contain the observations left out.

        Of n errors in predicted deviations, the one of rank 0.9 (n + 1), rounded up, is used; at
        least 0.1.
        """
        errors, stds = self.left_out
        ratios = np.sort(np.abs(errors) / stds)
        rank = min(int(np.ceil(0.9 * (len(ratios) + 1))), len(ratios))
        return max(float(ratios[rank - 1] / ndtri(0.95)), _LEAST_SURPRISE)

    def predict(self, parts: Parts, noise: bool = True) -> tuple[Numbers, Numbers]:
        """Return mean and standard deviation, each of shape (m,), in the observations' unit.

        Args:
            parts: Features of the m query rows.
            noise: Whether the deviation is that of a new observation, rather than of the function.
        """
        chunks = [
            self._predict(parts.rows(range(start, min(start + _CHUNK, len(parts)))), noise)
            for start in range(0, len(parts), _CHUNK)
        ]
        if not chunks:
            return np.zeros(0), np.zeros(0)
        centres, spreads = zip(*chunks, strict=True)
        return np.concatenate(centres), np.concatenate(spreads)

    def _predict(self, parts: Parts, noise: bool) -> tuple[Numbers, Numbers]:
        own = self.weights @ self._variances
        ones = np.ones((1, len(parts), len(self.observed)))
        cross = np.concatenate([covariances(parts, self.parts), ones])
        flat = cross.transpose(1, 0, 2).reshape(len(parts), -1)
        mean = flat @ self.coefficients.ravel()
        left = own[:-2] @ parts.variances + own[-2]
        left -= np.einsum("mi,mi->m", flat @ self._reduction, flat)
        spread = np.maximum(left, 0.0) + (own[-1] if noise else 0.0)
        return self.centre + self.scale * mean, self.scale * np.sqrt(spread)


def means(processes: Sequence[Mixture], parts: Parts) -> Numbers:
    """Return posterior means of several processes, of shape (len(parts), len(processes)).

    The means equal those of `Mixture.predict`. They are faster to compute if processes share their
    observed rows, since covariances with these rows are computed once.
    """
    groups: dict[int, list[int]] = {}
    for index, process in enumerate(processes):
        groups.setdefault(id(process.parts), []).append(index)
    result = np.empty((len(parts), len(processes)))
    for members in groups.values():
        alike = [processes[i] for i in members]
        for start in range(0, len(parts), _CHUNK):
            end = min(start + _CHUNK, len(parts))
            result[start:end, members] = _means_of_alike(alike, parts.rows(range(start, end)))
    return result


def _means_of_alike(processes: Sequence[Mixture], parts: Parts) -> Numbers:
    observed = processes[0].parts
    table = np.stack([each.coefficients for each in processes], axis=2)  # (P + 1, n, processes)
    total = np.broadcast_to(table[-1].sum(0), (len(parts), len(processes))).copy()
    for place, name in enumerate(parts.names):
        if name in parts.linear:
            total += parts.linear[name] @ (observed.linear[name].T @ table[place])
        else:
            total += _radial(parts.radial[name], observed.radial[name]) @ table[place]
    scales, centres = ([getattr(p, name) for p in processes] for name in ("scale", "centre"))
    result: Numbers = np.asarray(scales) * total + np.asarray(centres)
    return result
