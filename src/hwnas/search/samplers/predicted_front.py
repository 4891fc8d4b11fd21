"""Baseline samplers that learn the objectives and evaluate the predicted front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import RidgeCV
from sklearn.svm import SVR

from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.surrogate import Surrogate
from hwnas.registry import Plugin
from hwnas.search.objectives.front import Losses, pick_spread
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import pool, random_start
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "PredictedFront", "forest", "linas", "surrogate_nsga2"]

_START = 20
_POPULATION = 50
_GENERATIONS = 50

Predict = Callable[[Codes], Numbers]
"""Function from networks (N, P) to predicted losses (N,)."""
Learn = Callable[[SpaceFeatures, Codes, Numbers, int], Predict]
"""Function that fits a predictor to n networks (n, P) and their losses (n,), with a seed."""


class PredictedFront(BatchSampler):
    """Sampler that proposes random networks first and then spreads over the predicted front.

    Objectives with a known cost are not learnt. In a small space all networks are predicted; in a
    large one NSGA-II searches for the predicted front.

    Args:
        learn: Function that fits a predictor of one objective.
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together.
        features: Description of the space; made from a study's trials if None.
        start: Number of trials with random networks before the first fit.
    """

    def __init__(
        self,
        learn: Learn,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        start: int = _START,
    ) -> None:
        super().__init__(seed, batch, features)
        self.learn, self.start = learn, start

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        if len(history) < self.start:
            return random_start(features, history, count, rng)
        predicts = self._learnt(features, history)

        def score(codes: Codes) -> tuple[Losses, Losses]:
            predicted = features.predict(codes)
            columns = [
                sign * predicted[j].values if j in predicted else predicts[j](codes)
                for j, sign in enumerate(history.signs)
            ]
            return np.column_stack(columns), 0.5 - features.allowed(codes).astype(np.float64)

        candidates = pool(features, history, score, rng, _POPULATION, _GENERATIONS)
        losses, missed = score(candidates)
        allowed = np.flatnonzero(missed <= 0)
        return candidates[allowed[pick_spread(losses[allowed], count)]]

    def _learnt(self, features: SpaceFeatures, history: History) -> dict[int, Predict]:
        known = features.predict(history.codes[:1])
        return {
            j: self.learn(features, history.codes, losses, self.seed)
            for j, losses in enumerate(history.losses.T)
            if j not in known
        }


def linas(
    seed: int = 0, batch: int = 4, features: SpaceFeatures | None = None, start: int = _START
) -> PredictedFront:
    """Build LINAS (Cummings et al., 2022): NSGA-II on ridge and support vector regression.

    Args:
        seed: Seed of the random numbers.
        batch: Number of networks that are proposed at a time.
        features: Description of the space.
        start: Number of trials before the first model is fitted, at least 2.
    """
    return PredictedFront(_ridge_and_svr, seed, batch, features, start)


def forest(
    seed: int = 0, batch: int = 4, features: SpaceFeatures | None = None, start: int = _START
) -> PredictedFront:
    """Build NSGA-II on predictions of extremely randomised trees (Geurts et al., 2006).

    Args:
        seed: Seed of the random numbers.
        batch: Number of networks that are proposed at a time.
        features: Description of the space.
        start: Number of trials before the first model is fitted, at least 2.
    """
    return PredictedFront(_trees, seed, batch, features, start)


def surrogate_nsga2(
    seed: int = 0, batch: int = 4, features: SpaceFeatures | None = None, start: int = _START
) -> PredictedFront:
    """Build NSGA-II on the means of the Gaussian processes that `GuidedSampler` uses.

    Args:
        seed: Seed of the random numbers.
        batch: Number of networks that are proposed at a time.
        features: Description of the space.
        start: Number of trials before the first model is fitted, at least 2.
    """
    return PredictedFront(_process, seed, batch, features, start)


def _ridge_and_svr(features: SpaceFeatures, codes: Codes, losses: Numbers, seed: int) -> Predict:
    inputs = _inputs(features, codes)
    models: tuple[Any, ...] = RidgeCV(np.logspace(-3, 3, 13)), SVR(C=10.0, epsilon=0.01)
    centre, unit = float(losses.mean()), float(losses.std()) or 1.0
    for model in models:
        model.fit(inputs, (losses - centre) / unit)

    def predict(asked: Codes) -> Numbers:
        inputs = _inputs(features, asked)
        found = np.mean([model.predict(inputs) for model in models], axis=0)
        return np.asarray(centre + unit * found)

    return predict


def _trees(features: SpaceFeatures, codes: Codes, losses: Numbers, seed: int) -> Predict:
    model = ExtraTreesRegressor(100, random_state=seed).fit(_inputs(features, codes), losses)
    return lambda asked: np.asarray(model.predict(_inputs(features, asked)))


def _process(features: SpaceFeatures, codes: Codes, losses: Numbers, seed: int) -> Predict:
    surrogate = Surrogate.fitted(features.parts(codes), losses)
    return lambda asked: surrogate.predict(features.parts(asked))[0]


def _inputs(features: SpaceFeatures, codes: Codes) -> Numbers:
    return np.hstack(list(features.parts(codes).linear.values()))


PLUGINS = (
    Plugin("sampler", "forest", forest, "NSGA-II on extremely randomised trees"),
    Plugin("sampler", "linas", linas, "NSGA-II on ridge and support vector regression (LINAS)"),
    Plugin("sampler", "surrogate-nsga2", surrogate_nsga2, "NSGA-II on Gaussian processes"),
)
