"""What evaluations of networks would give: from prices where there are any, else learnt.

Shapes: n trials, N networks asked about, m objectives. All is in the scale that an objective is
learnt in, and smaller is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from hwnas.predictors.gaussian_process import Numbers, Parts, covariances
from hwnas.predictors.surrogate import Surrogate
from hwnas.search.front import Losses
from hwnas.search.samplers.knowledge import Knowledge
from hwnas.search.samplers.planned import History
from hwnas.search_spaces.tabular import Codes

__all__ = ["Outlook", "Scale", "scale_of"]

_UNIT = 0.25  # of the distance from the best to the median loss: below, differences count in full
_FLOOR = 0.02  # losses more than a unit below the best are all the same
_EXACT = 1e-9
_CHUNK = 4096

Draws = tuple[Numbers, Numbers]
"""Hyperparameters of an earlier fit: `Surrogate.draws`."""


@dataclass(frozen=True)
class Scale:
    """A monotone map of losses, in which differences that matter are about equally large.

    Attributes:
        best: None for a cost, whose logarithm is taken; else the smallest loss that was seen.
        unit: Of the losses of a score, of which log(2 + (loss - best) / unit) is taken: how bad bad
            networks are is not worth learning.
    """

    best: float | None = None
    unit: float = 1.0

    def __call__(self, losses: Numbers) -> Numbers:
        """Losses, scaled."""
        if self.best is None:
            return np.log(losses)
        found: Numbers = np.log1p(np.maximum((losses - self.best) / self.unit + 1.0, _FLOOR))
        return found


def scale_of(losses: Numbers, minimised: bool) -> Scale:
    """A cost's where an objective is minimised and positive, else a score's."""
    if minimised and (losses > 0).all():
        return Scale()
    best = float(losses.min())
    return Scale(best, max(_UNIT * (float(np.median(losses)) - best), _EXACT))


@dataclass(frozen=True)
class _Learnt:
    """One objective: its scale, and what was learnt of it.

    Attributes:
        scale: Of its losses.
        surrogate: Of the scaled losses, or of what the scaled price leaves of them; None where the
            price is all that is known.
    """

    scale: Scale
    surrogate: Surrogate | None


@dataclass(frozen=True)
class Outlook:
    """Predictions of all objectives and of whether limits are kept.

    Attributes:
        knowledge: Of the space.
        observed: Features of the trials that were learnt from.
        objectives: What was learnt of each, m of them.
        limits: By how much limits that prices know nothing of are missed, learnt.
    """

    knowledge: Knowledge
    observed: Parts
    objectives: tuple[_Learnt, ...]
    limits: tuple[Surrogate, ...]

    @classmethod
    def learnt(cls, knowledge: Knowledge, history: History, draws: Mapping[int, Draws]) -> Outlook:
        """From the trials of a history.

        Args:
            knowledge: Of the space.
            history: At least two trials.
            draws: Hyperparameters by the index of an objective; those that are missing are found.
        """
        observed = knowledge.parts(history.codes)
        prices = knowledge.price(history.codes)
        objectives = []
        for j, (losses, sign) in enumerate(zip(history.losses.T, history.signs, strict=True)):
            scale = scale_of(losses, sign > 0)
            values = scale(losses)
            price = prices.get(j)
            if price is not None:
                values = values - scale(sign * price.values)
            exact = price is not None and np.abs(values).max() < _EXACT
            surrogate = None if exact else Surrogate.fitted(observed, values, draws.get(j))
            objectives.append(_Learnt(scale, surrogate))
        missed = [
            limit
            for label, limit in zip(history.limits, history.violations.T, strict=True)
            if label not in knowledge.known_limits and (limit > 0).any()
        ]
        limits = tuple(Surrogate.fitted(observed, limit) for limit in missed)
        return cls(knowledge, observed, tuple(objectives), limits)

    def scaled(self, losses: Losses) -> Losses:
        """Losses (n, m) in the objectives' scales."""
        pairs = zip(self.objectives, losses.T, strict=True)
        return np.column_stack([objective.scale(column) for objective, column in pairs])

    def predict(
        self, codes: Codes, signs: Losses, draws: int | None = None
    ) -> tuple[Losses, Losses, Numbers]:
        """Means and standard deviations, each (N, m), and the probability to be feasible, (N,).

        Args:
            codes: Of the networks.
            signs: 1 for objectives that are minimised, -1 for others, (m,).
            draws: See `Surrogate.predict_from`.
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
        parts, prices = self.knowledge.parts(codes), self.knowledge.price(codes)
        cross, own = covariances(parts, self.observed, self._used(draws)), parts.variances
        means, deviations = np.zeros((2, len(codes), len(self.objectives)))
        for j, objective in enumerate(self.objectives):
            if objective.surrogate is not None:
                means[:, j], deviations[:, j] = objective.surrogate.predict_from(cross, own, draws)
            if j in prices:
                means[:, j] += objective.scale(signs[j] * prices[j].values)
                # What was seen of the price's errors makes it surer, and never less sure.
                deviations[:, j] = np.minimum(deviations[:, j], prices[j].deviations)
        feasible = self.knowledge.allowed(codes).astype(np.float64)
        for limit in self.limits:
            mean, deviation = limit.predict_from(cross, own, draws)
            feasible *= ndtr(-mean / np.maximum(deviation, _EXACT))
        return means, deviations, feasible

    def covariances(self, codes: Codes) -> Losses:
        """Between networks, of each objective: (m, N, N)."""
        parts = self.knowledge.parts(codes)
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
        """Which parts of the kernel matter to any surrogate, (P,)."""
        learnt = [each.surrogate for each in self.objectives if each.surrogate is not None]
        none = np.zeros(len(self.observed.names), dtype=bool)
        used = [none, *(each.used(draws) for each in (*learnt, *self.limits))]
        return np.asarray(np.any(used, axis=0))

    @property
    def noise(self) -> Numbers:
        """Variance of an observation about what is learnt of each objective, (m,)."""
        learnt = [objective.surrogate for objective in self.objectives]
        return np.array([0.0 if each is None else each.noise for each in learnt])
