"""Posterior over objectives of networks: from known costs where there are any, else learnt.

Shapes: n trials, N networks to predict, m objectives. All values are on the scale on which an
objective is modelled, and smaller is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from hwnas.predictors.models.gaussian_process import Numbers, Parts, covariances
from hwnas.predictors.models.surrogate import Surrogate
from hwnas.search.objectives.front import Losses
from hwnas.search.samplers.base.batch import History
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["LossScale", "Posterior", "scale_of"]

_UNIT = 0.25  # unit of a score's scale, as a share of the distance from the best to the median loss
_FLOOR = 0.02  # cuts off losses that are about one unit or more below the best
_EXACT = 1e-9
_CHUNK = 4096

Draws = tuple[Numbers, Numbers]
"""Hyperparameters of an earlier fit, as `Surrogate.draws` returns them."""


@dataclass(frozen=True)
class LossScale:
    """Monotone map of losses to a scale on which relevant differences are about equally large.

    A cost maps to its logarithm. A score maps to log(2 + (loss - best) / unit), since the
    differences among bad networks are not worth modelling.

    Attributes:
        best: None for a cost; for a score the smallest loss observed.
        unit: Unit of the losses of a score.
    """

    best: float | None = None
    unit: float = 1.0

    def __call__(self, losses: Numbers) -> Numbers:
        """Return the losses on this scale."""
        if self.best is None:
            return np.log(losses)
        found: Numbers = np.log1p(np.maximum((losses - self.best) / self.unit + 1.0, _FLOOR))
        return found


def scale_of(losses: Numbers, minimised: bool) -> LossScale:
    """Return a cost's scale if the objective is minimised and positive, else a score's scale."""
    if minimised and (losses > 0).all():
        return LossScale()
    best = float(losses.min())
    return LossScale(best, max(_UNIT * (float(np.median(losses)) - best), _EXACT))


@dataclass(frozen=True)
class _Learnt:
    """Model of one objective.

    Attributes:
        scale: Scale of the losses.
        surrogate: Surrogate of the scaled losses, or of their residuals from the scaled prediction
            of a known cost; None if the known cost is exact.
    """

    scale: LossScale
    surrogate: Surrogate | None


@dataclass(frozen=True)
class Posterior:
    """Posterior over all objectives, with the probability that a network meets the limits.

    Attributes:
        features: Description of the space.
        observed: Features of the trials that the models are fitted to.
        objectives: Models of the m objectives.
        limits: Surrogates of the violations of those limits that no known cost decides.
    """

    features: SpaceFeatures
    observed: Parts
    objectives: tuple[_Learnt, ...]
    limits: tuple[Surrogate, ...]

    @classmethod
    def learnt(
        cls, features: SpaceFeatures, history: History, draws: Mapping[int, Draws]
    ) -> Posterior:
        """Fit the models to the trials of a history.

        Args:
            features: Description of the space.
            history: History of at least two trials.
            draws: Hyperparameters by the index of an objective; missing ones are fitted.
        """
        observed = features.parts(history.codes)
        predicted = features.predict(history.codes)
        objectives = []
        for j, (losses, sign) in enumerate(zip(history.losses.T, history.signs, strict=True)):
            scale = scale_of(losses, sign > 0)
            values = scale(losses)
            cost = predicted.get(j)
            if cost is not None:
                values = values - scale(sign * cost.values)
            exact = cost is not None and np.abs(values).max() < _EXACT
            surrogate = None if exact else Surrogate.fitted(observed, values, draws.get(j))
            objectives.append(_Learnt(scale, surrogate))
        missed = [
            limit
            for label, limit in zip(history.limits, history.violations.T, strict=True)
            if label not in features.known_limits and (limit > 0).any()
        ]
        limits = tuple(Surrogate.fitted(observed, limit) for limit in missed)
        return cls(features, observed, tuple(objectives), limits)

    def scaled(self, losses: Losses) -> Losses:
        """Return losses (n, m) on the scales of the objectives."""
        pairs = zip(self.objectives, losses.T, strict=True)
        return np.column_stack([objective.scale(column) for objective, column in pairs])

    def predict(
        self, codes: Codes, signs: Losses, draws: int | None = None
    ) -> tuple[Losses, Losses, Numbers]:
        """Return means and standard deviations, each (N, m), and feasibility probabilities, (N,).

        Args:
            codes: Codes of the networks, (N, P).
            signs: 1 for each minimised objective, -1 for each maximised one, (m,).
            draws: Number of the likeliest hyperparameters to use; all if None. See
                `Surrogate.predict_from`.
        """
        found = [
            self._predict(codes[start : start + _CHUNK], signs, draws)
            for start in range(0, len(codes), _CHUNK)
        ]
        means, deviations, feasible = zip(*found, strict=True)
        return np.concatenate(means), np.concatenate(deviations), np.concatenate(feasible)

    def _predict(
        self, codes: Codes, signs: Losses, draws: int | None
    ) -> tuple[Losses, Losses, Numbers]:
        parts, predicted = self.features.parts(codes), self.features.predict(codes)
        cross, own = covariances(parts, self.observed, self._used(draws)), parts.variances
        means, deviations = np.zeros((2, len(codes), len(self.objectives)))
        for j, objective in enumerate(self.objectives):
            if objective.surrogate is not None:
                means[:, j], deviations[:, j] = objective.surrogate.predict_from(cross, own, draws)
            if j in predicted:
                means[:, j] += objective.scale(signs[j] * predicted[j].values)
                # Observed errors of a known cost may lower its deviation, but never raise it.
                deviations[:, j] = np.minimum(deviations[:, j], predicted[j].deviations)
        feasible = self.features.allowed(codes).astype(np.float64)
        for limit in self.limits:
            mean, deviation = limit.predict_from(cross, own, draws)
            feasible *= ndtr(-mean / np.maximum(deviation, _EXACT))
        return means, deviations, feasible

    def covariances(self, codes: Codes) -> Losses:
        """Return the posterior covariances between networks for each objective, (m, N, N)."""
        parts = self.features.parts(codes)
        used = self._used(None)
        cross, between = covariances(parts, self.observed, used), covariances(parts, parts, used)
        none = np.zeros((len(codes), len(codes)))
        return np.array(
            [
                none if each.surrogate is None else each.surrogate.joint_from(cross, between)[1]
                for each in self.objectives
            ]
        )

    def _used(self, draws: int | None) -> npt.NDArray[np.bool_]:
        """Return a mask of the kernel parts that any surrogate uses, of shape (parts,)."""
        learnt = [each.surrogate for each in self.objectives if each.surrogate is not None]
        none = np.zeros(len(self.observed.names), dtype=bool)
        used = [none, *(each.used(draws) for each in (*learnt, *self.limits))]
        return np.asarray(np.any(used, axis=0))

    @property
    def noise(self) -> Numbers:
        """Variance of the observation noise of each objective, (m,); 0 without a surrogate."""
        learnt = [objective.surrogate for objective in self.objectives]
        return np.array([0.0 if each is None else each.noise for each in learnt])
