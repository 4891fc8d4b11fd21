"""Baseline sampler that ranks networks by a zero-cost proxy and learns nothing."""

from __future__ import annotations

import numpy as np

from hwnas.registry import Plugin
from hwnas.search.objectives.front import front_by_front
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import pool
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "ProxyOrder"]


class ProxyOrder(BatchSampler):
    """Sampler that visits the front of a zero-cost proxy and the known costs, then the next front.

    The proxy is `SpaceFeatures.proxy`. Objectives without a known cost are ignored.

    Args:
        seed: Seed of the order within a front.
        batch: Number of proposals that are planned together.
        features: Description of the space; made from a study's trials if None.
    """

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""

        def score(codes: Codes) -> tuple[np.ndarray, np.ndarray]:
            predicted = features.predict(codes)
            known = [history.signs[j] * cost.values for j, cost in predicted.items()]
            return np.column_stack([-features.proxy(codes), *known]), 0.5 - features.allowed(codes)

        candidates = pool(features, history, score, rng)
        losses, missed = score(candidates)
        allowed = np.flatnonzero(missed <= 0)
        picked: list[int] = []
        for front in front_by_front(losses[allowed]):
            if len(picked) >= count:
                break
            picked += rng.permutation(allowed[front]).tolist()
        return candidates[picked[:count]]


PLUGINS = (
    Plugin("sampler", "proxy-order", ProxyOrder, "Networks in the order of zero-cost proxies"),
)
