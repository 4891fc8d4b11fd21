"""The rival that learns nothing: good networks are those that look it without any training."""

from __future__ import annotations

import numpy as np

from hwnas.search.front import front_by_front
from hwnas.search.samplers.knowledge import Knowledge
from hwnas.search.samplers.planned import History, PlannedSampler
from hwnas.search.samplers.pool import pool
from hwnas.search_spaces.tabular import Codes

__all__ = ["ProxyOrder"]


class ProxyOrder(PlannedSampler):
    """Visits the front of a zero-cost proxy and the prices, then the next front, and so on.

    See `Knowledge.proxy`. What has no price counts for nothing.

    Args:
        seed: Of the order within a front.
        batch: Proposals planned together.
        knowledge: Of the space; made from a study's trials if None.
    """

    def plan(
        self, knowledge: Knowledge, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `PlannedSampler.plan`."""

        def score(codes: Codes) -> tuple[np.ndarray, np.ndarray]:
            prices = knowledge.price(codes)
            known = [history.signs[j] * price.values for j, price in prices.items()]
            return np.column_stack([-knowledge.proxy(codes), *known]), 0.5 - knowledge.allowed(
                codes
            )

        candidates = pool(knowledge, history, score, rng)
        losses, missed = score(candidates)
        allowed = np.flatnonzero(missed <= 0)
        picked: list[int] = []
        for front in front_by_front(losses[allowed]):
            if len(picked) >= count:
                break
            picked += rng.permutation(allowed[front]).tolist()
        return candidates[picked[:count]]
