"""Default sampler of hwnas: Bayesian optimisation that uses known costs where there are any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.registry import Plugin
from hwnas.search.objectives.front import Losses, front_by_front, non_dominated
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import pool, random_start
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search.samplers.guided.acquisition import BoxDecomposition
from hwnas.search.samplers.guided.posterior import Draws, Posterior
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "GuidedSampler"]

_START = 10  # trials before the first model is fitted
_SPREAD = 50  # random networks for each proposal of the start
_SHORT_LIST = 150  # smallest number of candidates with a joint posterior
_POPULATION = 250
_GENERATIONS = 6
_LEARNT_FROM = 256  # most trials that a model is fitted to
_REFIT = 1.25  # growth of the number of trials after which hyperparameters are refitted
_MARGIN = 0.1  # margin of the reference point, in units of an objective's range
_LEAST_RANGE = 1e-9
_Look = Literal["logarithmic", "linear"]
_LOOKS: tuple[_Look, ...] = ("logarithmic", "linear")


class GuidedSampler(BatchSampler):
    """Sampler that maximises the expected hypervolume improvement over predicted objectives.

    It follows LINAS (Cummings et al., "A Hardware-Aware System for Accelerating Deep Neural Network
    Optimization", 2022): an inner search over predictors finds the networks to evaluate. Objectives
    with a known cost in the features need no model. Every other objective is modelled by a
    Gaussian process that is refitted for every batch. Proposals are picked greedily by expected
    hypervolume improvement, each as if the earlier proposals of the batch had been observed at
    their predicted means (kriging believer; Ginsbourger, Le Riche and Carraro, 2010), so a batch is
    spread over the front. No network is proposed twice.

    Proposals use logarithmic and linear scales of costs in turn, since fronts are judged on both.

    Args:
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together.
        features: Description of the space; made from a study's trials if None.
        start: Number of trials before the first model is fitted, at least 2.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        start: int = _START,
    ) -> None:
        super().__init__(seed, batch, features)
        self.start = max(start, 2)
        self._draws: tuple[int, dict[int, Draws]] = 0, {}

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        if len(history) < self.start:
            return _spread(features, history, count, rng)
        known = _informative(history)
        posterior = Posterior.learnt(features, known, self._hyperparameters(features, history))
        signs = history.signs

        def hoped(codes: Codes) -> tuple[Losses, Losses]:
            means, deviations, feasible = posterior.predict(codes, signs, 1)
            return means - deviations, 0.5 - feasible

        candidates = pool(features, known, hoped, rng, max(_POPULATION, 4 * count), _GENERATIONS)
        return _Choice(posterior, known, candidates).best(count)

    def _hyperparameters(self, features: SpaceFeatures, history: History) -> dict[int, Draws]:
        """Return hyperparameters, refitted whenever the number of trials grows by `_REFIT`.

        They are a pure function of the history, so a resumed search finds the same ones.
        """
        steps = int(np.log(len(history) / self.start) / np.log(_REFIT) + 1e-9)
        first = min(int(np.ceil(self.start * _REFIT**steps)), len(history))
        if self._draws[0] != first:
            learnt = Posterior.learnt(features, _informative(history.first(first)), {})
            found = {
                j: each.surrogate.draws
                for j, each in enumerate(learnt.objectives)
                if each.surrogate is not None
            }
            self._draws = first, found
        return self._draws[1]


def _spread(
    features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
) -> Codes:
    """Draw random networks for the start, evenly spread over the first known cost."""
    drawn = random_start(features, history, _SPREAD * count, rng)
    predicted = features.predict(drawn)
    if len(drawn) <= count or not predicted:
        return drawn[:count]
    order = np.argsort(next(iter(predicted.values())).values, kind="stable")
    cells = np.array_split(order, count)
    return rng.permutation(drawn[[cell[rng.integers(len(cell))] for cell in cells]])


def _informative(history: History) -> History:
    """Return the trials to fit to: all of a short history, else the best fronts and some others."""
    if len(history) <= _LEARNT_FROM:
        return history
    wanted = _LEARNT_FROM * 3 // 4
    kept: list[int] = []
    for front in front_by_front(history.losses):
        if len(kept) >= wanted:
            break
        kept += front.tolist()
    kept = kept[:wanted]
    rest = np.setdiff1d(np.arange(len(history)), kept)
    others = rest[np.linspace(0, len(rest) - 1, _LEARNT_FROM - len(kept)).astype(np.int64)]
    return history.rows(np.sort([*kept, *others]))


@dataclass
class _Choice:
    """Choice of a batch from a pool of candidates."""

    posterior: Posterior
    history: History
    candidates: Codes

    def best(self, count: int) -> Codes:
        """Pick candidates greedily by their joint expected hypervolume improvement, (count, P)."""
        signs = self.history.signs
        if len(self.candidates) <= count:
            return self.candidates
        known = self.posterior.scaled(self.history.losses[self.history.feasible])
        means, deviations, feasible = self.posterior.predict(self.candidates, signs, 1)
        gains = sum(
            _relative(self._gain(look, known, means, deviations, feasible)) for look in _LOOKS
        )
        listed = np.argsort(-gains, kind="stable")[: max(_SHORT_LIST, 4 * count)]
        shown = self.candidates[listed]
        means, largest, feasible = self.posterior.predict(shown, signs)
        covariances = self.posterior.covariances(shown)
        picked: list[int] = []
        while len(picked) < min(count, len(shown)):
            variances = np.diagonal(covariances, axis1=1, axis2=2).T
            deviations = np.minimum(np.sqrt(np.maximum(variances, 0.0)), largest)
            look = _LOOKS[(len(self.history) + len(picked)) % len(_LOOKS)]
            gain = self._gain(look, known, means, deviations, feasible)
            gain[picked] = -1.0
            best = int(gain.argmax())
            picked.append(best)
            known = np.vstack([known, means[best]])
            covariances = _conditioned(covariances, best, self.posterior.noise)
        return shown[picked]

    def _gain(
        self, look: _Look, known: Losses, means: Losses, deviations: Losses, feasible: Numbers
    ) -> Numbers:
        """Return expected hypervolume improvements times feasibility probabilities, (N,)."""
        if look == "linear":
            known, means, deviations = known.copy(), means.copy(), deviations.copy()
            for j, objective in enumerate(self.posterior.objectives):
                if objective.scale.best is None:
                    known[:, j], means[:, j] = np.exp(known[:, j]), np.exp(means[:, j])
                    deviations[:, j] *= means[:, j]
        # The reference point is worse than the observed and the optimistically predicted front.
        hopes = (means - deviations)[feasible > 0.5]
        ends = np.vstack([hopes[non_dominated(hopes)], known[non_dominated(known)]])
        if not len(ends):
            return feasible
        reference = ends.max(0) + _MARGIN * np.maximum(np.ptp(ends, axis=0), _LEAST_RANGE)
        return BoxDecomposition.by(known, reference).improvement(means, deviations) * feasible


def _relative(gains: Numbers) -> Numbers:
    found: Numbers = gains / max(float(gains.max(initial=0.0)), np.finfo(float).tiny)
    return found


def _conditioned(covariances: Losses, chosen: int, noise: Numbers) -> Losses:
    """Return the covariances (m, N, N) conditioned on an observation of one network."""
    columns = covariances[:, :, chosen]
    total = columns[:, chosen] + noise
    lost = columns[:, :, None] * columns[:, None] / np.maximum(total, _LEAST_RANGE)[:, None, None]
    found: Losses = covariances - lost
    return found


PLUGINS = (
    Plugin(
        "sampler",
        "guided",
        GuidedSampler,
        "Bayesian optimisation by expected hypervolume improvement, with known costs",
    ),
)
