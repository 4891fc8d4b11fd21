"""What a configuration will take, learned from those that were timed.

Ridge regression of the logarithm of the time: on the logarithms of the configuration's values,
their squares and products, what is known before and after compiling, and the sizes, so that what
was learned at some sizes is worth something at others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from hwnas.kernels.trial import Task, Trial

__all__ = ["CostModel", "features"]


def features(task: Task, trial: Trial) -> dict[str, float]:
    """Numbers by name; those of resources are missing where it is not compiled."""
    logs = {name: math.log2(1 + value) for name, value in sorted(trial.config.items())}
    found = dict(logs)
    for one, other in combinations_with_replacement(logs, 2):
        found[f"{one} * {other}"] = logs[one] * logs[other]
    if trial.footprint:
        waves = trial.footprint.programs / task.card.multiprocessors
        found["programs"] = math.log2(1 + trial.footprint.programs)
        found["idle"] = math.ceil(waves) / waves
        found["busiest_bytes"] = math.log2(1 + trial.footprint.busiest_bytes)
    if trial.resources:
        found["registers"] = max(part.registers for part in trial.resources) / 32
        found["spilled_bytes"] = math.log2(1 + trial.spilled_bytes)
        found["shared_bytes"] = math.log2(1 + max(part.shared_bytes for part in trial.resources))
        found["occupancy"] = trial.occupancy(task.card)
    return found | {f"size {name}": math.log2(1 + size) for name, size in task.sizes.items()}


class CostModel:
    """Learns more with each trial that was timed; one serves all sizes of an operator on a card.

    Args:
        penalty: Of squared weights of standardised features, in squares of the natural logarithm.
    """

    def __init__(self, penalty: float = 0.005) -> None:
        self._penalty = penalty
        self._rows: list[dict[str, float]] = []
        self._targets: list[float] = []

    def __len__(self) -> int:
        return len(self._rows)

    def learn(self, task: Task, trials: Iterable[Trial]) -> None:
        """Take in those of some trials that were timed, if only for a few runs."""
        timed = [trial for trial in trials if trial.times]
        self._rows += [features(task, trial) for trial in timed]
        self._targets += [math.log(trial.p50_us) for trial in timed]

    def predict_us(self, task: Task, trials: Sequence[Trial]) -> NDArray[np.float64]:
        """Expected medians in microseconds, of shape (trials,).

        What is missing of a trial is taken to be as in the mean trial that was timed. There must
        be one of those.
        """
        names = sorted(set().union(*self._rows))
        known = _table(self._rows, names)
        mean = np.nanmean(known, axis=0)
        spread = np.nanstd(known, axis=0)
        spread[spread < 1e-9] = 1.0
        x = np.nan_to_num((known - mean) / spread)
        y = np.array(self._targets)
        # With more features than trials the system of the trials is the smaller one.
        weights = np.linalg.solve(x @ x.T + self._penalty * len(x) * np.eye(len(x)), y - y.mean())
        asked = _table([features(task, trial) for trial in trials], names)
        z = np.nan_to_num((asked - mean) / spread)
        predicted: NDArray[np.float64] = np.exp(np.clip(y.mean() + z @ (x.T @ weights), -50, 50))
        return predicted


def _table(rows: Sequence[dict[str, float]], names: Sequence[str]) -> NDArray[np.float64]:
    """Of shape (rows, names); not-a-number where something is missing."""
    return np.array([[row.get(name, math.nan) for name in names] for row in rows])
