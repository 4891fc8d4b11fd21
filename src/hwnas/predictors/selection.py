"""Which networks to time, so that a few measurements tell the most."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from hwnas.predictors.features import features
from hwnas.predictors.gaussian_process import Numbers, Parts, covariances
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["most_informative", "networks_to_time"]

_POOL = 200
_RIDGE = 1e-2
_UNKNOWN_MEAN = 10.0


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


def most_informative(
    parts: Parts, variances: Numbers, count: int, chosen: Sequence[int] = ()
) -> list[int]:
    """Rows whose measurement leaves the least variance over all rows, greedily.

    Each step takes the row with the largest sum over rows of cov(row, other)^2 / (var(row) + noise)
    given those already taken (the integrated variance reduction of Cohn, "Neural Network
    Exploration Using Optimal Experiment Design", Neural Networks 1996).

    Args:
        parts: Of the rows that may be taken.
        variances: Of the parts of the kernel and, last, of the noise.
        count: How many to take.
        chosen: Rows that are taken already.

    Returns:
        The new rows, in the order in which they were taken.
    """
    left = np.tensordot(variances[:-1], covariances(parts, parts), 1)
    noise = variances[-1] + 1e-9
    left = left + _UNKNOWN_MEAN
    for row in chosen:
        left = _given(left, row, noise)
    taken: list[int] = []
    while len(taken) < min(count, len(parts) - len(chosen)):
        gain = (left * left).sum(0) / (np.diag(left) + noise)
        gain[[*chosen, *taken]] = -np.inf
        taken.append(int(gain.argmax()))
        left = _given(left, taken[-1], noise)
    return taken


def _given(covariance: Numbers, row: int, noise: float) -> Numbers:
    column = covariance[:, row]
    result: Numbers = covariance - np.outer(column, column) / (column[row] + noise)
    return result
