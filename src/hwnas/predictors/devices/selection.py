"""Choice of the networks to time, so that a few measurements are most informative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hwnas.predictors.models.gaussian_process import Numbers, Parts, covariances

__all__ = ["most_informative"]

_UNKNOWN_MEAN = 10.0


def most_informative(
    parts: Parts, variances: Numbers, count: int, chosen: Sequence[int] = ()
) -> list[int]:
    """Choose greedily the rows whose measurement leaves the least variance over all rows.

    Each step takes the row with the largest sum over rows of cov(row, other)^2 / (var(row) + noise)
    given those already taken (the integrated variance reduction of Cohn, "Neural Network
    Exploration Using Optimal Experiment Design", Neural Networks 1996).

    Args:
        parts: Features of the rows that may be taken.
        variances: Variances of the parts of the kernel and, last, of the noise.
        count: Number of rows to take.
        chosen: Rows that are taken already.

    Returns:
        New rows, in the order in which they were taken.
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
