"""Candidate pools that a sampler ranks by predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hwnas.search.evolution import evolve
from hwnas.search.objectives.front import Losses, non_dominated
from hwnas.search.samplers.base.batch import History
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["pool", "random_start"]

_DRAWN = 2000  # random networks that a start is taken from

Score = Callable[[Codes], tuple[Losses, Losses]]
"""Function from codes to predicted losses, (N, m), and predicted violations of limits, (N,)."""


def pool(
    features: SpaceFeatures,
    history: History,
    score: Score,
    rng: np.random.Generator,
    population: int = 400,
    generations: int = 8,
) -> Codes:
    """Return unproposed networks: all of a small space, else an evolved population and random ones.

    Args:
        features: Description of the space.
        history: Trials so far; evolution starts from their front.
        score: Losses and violations by which evolution (NSGA-II) selects.
        rng: Source of randomness.
        population: Number of networks in a generation.
        generations: Number of generations.
    """
    if features.listed:
        return history.unseen(features.all_codes())

    def scored(codes: Any) -> tuple[Losses, Losses]:
        losses, missed = score(np.asarray(codes))
        if losses.shape[1] == 1:  # `evolve` needs at least two objectives
            losses = np.repeat(losses, 2, axis=1)
        return losses, missed

    best = history.codes[history.feasible]
    best = best[non_dominated(history.losses[history.feasible])]
    grown = evolve(
        tuple(features.sizes.tolist()),
        scored,
        population,
        generations,
        seed=int(rng.integers(2**31)),
        initial=best[:population] if len(best) else None,
        canonical=features.canonical,
    )
    return history.unseen(np.vstack([grown.population, features.draw(population // 4, rng)]))


def random_start(
    features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
) -> Codes:
    """Return random networks that were not proposed and meet the limits on known costs.

    If a small space has no such network left, random ones that violate these limits are returned.
    """
    drawn = features.draw(_DRAWN, rng)
    drawn = history.unseen(drawn[features.allowed(drawn)])
    if len(drawn) < count and features.listed:
        left = history.unseen(features.all_codes())
        kept = left[features.allowed(left)]
        drawn = rng.permutation(kept if len(kept) else left)
    return drawn[:count]
