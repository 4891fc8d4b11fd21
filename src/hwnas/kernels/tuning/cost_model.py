"""Cost model that predicts the time of a configuration from those that were timed.

It is a ridge regression of the logarithm of the time. The features are the logarithms of the
configuration's values, their squares and products, numbers known before and after compilation, and
the sizes, so that a model trained at some sizes is useful at others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from hwnas.kernels.tuning.trial import TuningTask, TuningTrial

__all__ = ["CostModel", "features"]


def features(task: TuningTask, trial: TuningTrial) -> dict[str, float]:
    """Return features by name, without those of resource usage if the trial is not compiled."""
    logs = {name: math.log2(1 + value) for name, value in sorted(trial.config.items())}
    found = dict(logs)
    for one, other in combinations_with_replacement(logs, 2):
        found[f"{one} * {other}"] = logs[one] * logs[other]
    if trial.footprint:
        waves = trial.footprint.programs / task.gpu.multiprocessors
        found["programs"] = math.log2(1 + trial.footprint.programs)
        found["idle"] = math.ceil(waves) / waves
        found["busiest_bytes"] = math.log2(1 + trial.footprint.busiest_bytes)
    if trial.resources:
        found["registers"] = max(part.registers for part in trial.resources) / 32
        found["spilled_bytes"] = math.log2(1 + trial.spilled_bytes)
        found["shared_bytes"] = math.log2(1 + max(part.shared_bytes for part in trial.resources))
        found["occupancy"] = trial.occupancy(task.gpu)
    return found | {f"size {name}": math.log2(1 + size) for name, size in task.sizes.items()}


class CostModel:
    """Ridge regression of times, trained with each timed trial.

    One model serves all sizes of an operator on a GPU.

    Args:
        penalty: Penalty of squared weights of standardised features, in squares of the natural
            logarithm.
    """

    def __init__(self, penalty: float = 0.005) -> None:
        self._penalty = penalty
        self._rows: list[dict[str, float]] = []
        self._targets: list[float] = []

    def __len__(self) -> int:
        return len(self._rows)

    def learn(self, task: TuningTask, trials: Iterable[TuningTrial]) -> None:
        """Add the timed ones of some trials to the training data, even those of a few runs."""
        timed = [trial for trial in trials if trial.times]
        self._rows += [features(task, trial) for trial in timed]
        self._targets += [math.log(trial.p50_us) for trial in timed]

    def predict_us(self, task: TuningTask, trials: Sequence[TuningTrial]) -> NDArray[np.float64]:
        """Predict the medians of trials in microseconds, of shape (trials,).

        Missing features have the mean of the timed trials. At least one trial must have been timed.
        """
        names = sorted(set().union(*self._rows))
        known = _table(self._rows, names)
        mean = np.nanmean(known, axis=0)
        spread = np.nanstd(known, axis=0)
        spread[spread < 1e-9] = 1.0
        x = np.nan_to_num((known - mean) / spread)
        y = np.array(self._targets)
        # With more features than trials, the dual system (one row for each trial) is smaller.
        weights = np.linalg.solve(x @ x.T + self._penalty * len(x) * np.eye(len(x)), y - y.mean())
        asked = _table([features(task, trial) for trial in trials], names)
        z = np.nan_to_num((asked - mean) / spread)
        predicted: NDArray[np.float64] = np.exp(np.clip(y.mean() + z @ (x.T @ weights), -50, 50))
        return predicted


def _table(rows: Sequence[dict[str, float]], names: Sequence[str]) -> NDArray[np.float64]:
    """Return an array of shape (rows, names), with NaN for missing values."""
    return np.array([[row.get(name, math.nan) for name in names] for row in rows])
