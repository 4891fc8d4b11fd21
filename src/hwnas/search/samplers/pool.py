"""Networks that a prediction may be searched for good ones among."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hwnas.search.evolution import evolve
from hwnas.search.front import Losses, non_dominated
from hwnas.search.samplers.knowledge import Knowledge
from hwnas.search.samplers.planned import History
from hwnas.search_spaces.tabular import Codes

__all__ = ["pool", "random_start"]

_DRAWN = 2000  # networks that a start is picked from

Score = Callable[[Codes], tuple[Losses, Losses]]
"""Gives losses (N, m) and by how much limits are probably missed, (N,)."""


def pool(
    knowledge: Knowledge,
    history: History,
    score: Score,
    rng: np.random.Generator,
    population: int = 400,
    generations: int = 8,
) -> Codes:
    """Networks that were not proposed: all of a small space, else those that evolve.

    Args:
        knowledge: Of the space.
        history: The trials that there are; their front is where evolution starts.
        score: What evolution selects by (NSGA-II).
        rng: Source of randomness.
        population: How many networks evolve.
        generations: For how long.
    """
    if knowledge.listed:
        return history.unseen(knowledge.all_codes())

    def scored(codes: Any) -> tuple[Losses, Losses]:
        losses, missed = score(np.asarray(codes))
        if losses.shape[1] == 1:  # evolution is for two or more
            losses = np.repeat(losses, 2, axis=1)
        return losses, missed

    best = history.codes[history.feasible]
    best = best[non_dominated(history.losses[history.feasible])]
    grown = evolve(
        tuple(knowledge.sizes.tolist()),
        scored,
        population,
        generations,
        seed=int(rng.integers(2**31)),
        initial=best[:population] if len(best) else None,
        canonical=knowledge.canonical,
    )
    return history.unseen(np.vstack([grown.population, knowledge.draw(population // 4, rng)]))


def random_start(
    knowledge: Knowledge, history: History, count: int, rng: np.random.Generator
) -> Codes:
    """Random networks that were not proposed and are allowed, as far as that is known."""
    drawn = knowledge.draw(_DRAWN, rng)
    drawn = history.unseen(drawn[knowledge.allowed(drawn)])
    if len(drawn) < count and knowledge.listed:
        left = history.unseen(knowledge.all_codes())
        kept = left[knowledge.allowed(left)]
        drawn = rng.permutation(kept if len(kept) else left)
    return drawn[:count]
