"""Sampler that proposes the most probable networks of learned distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import random_start
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search.samplers.reinforce import drawn_from
from hwnas.search.strategies.distribution import Table
from hwnas.search_spaces.tabular import Codes

__all__ = ["FromDistributions"]

_DRAWS = 200  # networks drawn for each proposal
_WIDEST = 4.0  # largest temperature of a draw


class FromDistributions(BatchSampler):
    """Sampler that draws from distributions in turn, the most probable network of each first.

    A draw that was proposed before, or that does not meet a limit, is replaced by a draw at a
    higher temperature.

    Args:
        tables: Probability of each option by choice, one table for each distribution.
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together.
        features: Description of the space.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
    ) -> None:
        super().__init__(seed, batch, features)
        self._tables = tables

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        logits = self._logits(features)
        turns = (len(history.seen) + np.arange(count)) % len(logits)
        drawn = drawn_from(features, history, logits, turns, np.linspace(0.0, _WIDEST, _DRAWS), rng)
        if len(drawn) < count:
            others = random_start(features, history, 2 * count, rng)
            drawn = history.unseen(np.vstack([drawn, others]))
        return drawn[:count]

    def _logits(self, features: SpaceFeatures) -> Numbers:
        """Return the logits of all positions, (K, P, O); 0 for choices of further roles."""
        sizes = features.sizes
        found = np.full((len(self._tables), len(sizes), int(sizes.max())), -np.inf)
        for k, table in enumerate(self._tables):
            for p, (name, options) in enumerate(features.options.items()):
                row = table.get(name, {})
                known = np.array([row.get(str(option), 1.0) for option in options])
                found[k, p, : len(known)] = np.log(np.maximum(known, np.finfo(float).tiny))
        return found
