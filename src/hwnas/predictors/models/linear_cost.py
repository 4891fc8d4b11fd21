"""Latency of a network on one device as a non-negative combination of its physical quantities.

Such a model is coarser than a Gaussian process, but small, monotone in every quantity, and linear
beyond the networks that it was fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hwnas.errors import ConfigError
from hwnas.predictors.features.physical import FEATURES, quantities
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import OperatorCountTable

__all__ = ["LinearCost"]

_LEAST_MS = 1e-3  # keeps the logarithm of an empty network finite


@dataclass(frozen=True)
class LinearCost:
    """Milliseconds as a fixed time plus a sum over `FEATURES`.

    Attributes:
        weights: Fixed time in milliseconds, then milliseconds for each unit of a quantity; none is
            negative.
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != 1 + len(FEATURES) or min(self.weights) < 0:
            raise ConfigError(
                f"{len(self.weights)} weights; expected {1 + len(FEATURES)}, none of them negative"
            )

    @classmethod
    def fit(
        cls, steps: Sequence[OperatorCountTable], latencies_ms: Sequence[Numbers]
    ) -> LinearCost:
        """Return the model with the least squared relative error (non-negative least squares).

        Args:
            steps: Operator counts of networks, one table for each space.
            latencies_ms: Positive latencies of the networks of each table. Every table has the same
                weight, whatever the number of its networks.
        """
        from scipy.optimize import nnls

        shares = [
            _columns(t) / ms[:, None] / np.sqrt(len(ms)) for t, ms in _pairs(steps, latencies_ms)
        ]
        wanted = np.concatenate([np.full(len(ms), len(ms) ** -0.5) for ms in latencies_ms])
        design = np.vstack(shares)
        scale = np.maximum(design.max(0), 1e-300)  # columns of zeros stay zeros
        found, _ = nnls(design / scale, wanted)
        return cls(tuple(np.where(design.max(0) > 0, found / scale, 0.0).tolist()))

    def logs(self, steps: OperatorCountTable) -> Numbers:
        """Return the logarithms of the milliseconds of N networks, of shape (N,)."""
        found: Numbers = np.log(np.maximum(_columns(steps) @ np.array(self.weights), _LEAST_MS))
        return found


def _pairs(
    steps: Sequence[OperatorCountTable], latencies_ms: Sequence[Numbers]
) -> list[tuple[OperatorCountTable, Numbers]]:
    pairs = list(zip(steps, latencies_ms, strict=True))
    for table, ms in pairs:
        if len(table) != len(ms) or not len(ms) or not (ms > 0).all():
            raise ConfigError(
                f"{len(table)} networks and {len(ms)} latencies; expected one positive one of each"
            )
    return pairs


def _columns(steps: OperatorCountTable) -> Numbers:
    found = quantities(steps)
    return np.hstack([np.ones((len(found), 1)), found])
