"""Which networks to time, so that a few measurements tell the most."""

from __future__ import annotations

import random

import numpy as np

from hwnas.predictors.features import features
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["networks_to_time"]

_POOL = 200
_RIDGE = 1e-2


def networks_to_time(space: SearchSpace, count: int, rng: random.Random) -> list[Architecture]:
    """The smallest and the largest network, then greedily D-optimal ones from a random pool.

    Each step takes the network whose prediction is least certain given those already chosen, that
    is, the largest x^T (X^T X + ridge)^-1 x (Fedorov, 1972).

    Args:
        space: Where the networks are from.
        count: How many to choose; fewer are returned if the space holds fewer.
        rng: Draws the pool.
    """
    pool = {space.smallest(): None, space.largest(): None}
    for _ in range(_POOL):
        pool[space.sample(rng)] = None
    networks = list(pool)
    rows = features([space.workload(network) for network in networks])
    rows = (rows - rows.mean(0)) / np.maximum(rows.std(0), 1e-9)
    rows = np.column_stack([np.ones(len(rows)), rows])
    chosen = [0, 1][: min(count, len(networks))]
    while len(chosen) < min(count, len(networks)):
        known = rows[chosen]
        inverse = np.linalg.inv(known.T @ known + _RIDGE * np.eye(rows.shape[1]))
        uncertainty = np.einsum("nf,fg,ng->n", rows, inverse, rows)
        uncertainty[chosen] = -np.inf
        chosen.append(int(uncertainty.argmax()))
    return [networks[i] for i in chosen]
