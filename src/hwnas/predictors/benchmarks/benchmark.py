"""Benchmark of methods that predict costs on unseen devices, on published tables.

The rows of a table are split into a pool and queries. A method may have some rows of the pool
measured on the new device. It is scored on the queries, whose costs only the scoring reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import kendalltau, spearmanr

from hwnas.errors import ConfigError
from hwnas.plugin import resolve
from hwnas.predictors.benchmarks.baselines import (
    mean_of_devices,
    nearest_device,
    ridge,
    ridge_on_macs,
    ridge_quantiles,
)
from hwnas.predictors.benchmarks.cost_table import CostTable
from hwnas.predictors.features.sequence import sequence
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.methods import (
    DeviceMeasurement,
    Forecast,
    KnownDevices,
    Learner,
    Method,
    Rows,
)
from hwnas.predictors.models.neural import help_like
from hwnas.predictors.models.transfer import transfer

__all__ = ["METHODS", "DeviceSplit", "PredictorRow", "Protocol", "bench_predictor", "split_rows"]

METHODS: dict[str, Method] = {
    "default": transfer,
    "sequence": sequence,
    "help": help_like,
    "ridge": ridge,
    "ridge_quantiles": ridge_quantiles,
    "macs": ridge_on_macs,
    "nearest": nearest_device,
    "mean": mean_of_devices,
}
Protocol = Literal["trimmed", "full"]
_TRIMMED_QUERIES = 1000
_FULL_QUERIES = 5000
_TRIMMED_SHARE = 0.1
_BUDGETS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the queries' true costs


@dataclass(frozen=True)
class PredictorRow:
    """Scores of one method on one device with one seed.

    Attributes:
        device: New device.
        method: Name of the method.
        samples: Number of distinct networks that the method had measured on the new device.
        seed: Seed of the half of the pool that was offered, and of all other random choices.
        spearman: Spearman's rank correlation of predicted and true costs over the queries.
        kendall: Kendall's tau-b of predicted and true costs over the queries.
        mape: Mean of the absolute error over the true cost, in percent.
        median_ape: Median of the absolute error over the true cost, in percent.
        coverage90: Share of the queries whose true cost lies in the 90% interval, 0 to 1.
        width90: Median of upper over lower bound of the interval, minus 1, in percent.
        relative_width90: Median of the difference of the bounds over the predicted cost, in
            percent, as `median_ape`.
        violation: Percentage by which the network chosen by predicted cost exceeds the budget,
            averaged over five budgets; 0 for a network within the budget.
        regret: Accuracy lost against the best network within the budget, averaged over the same
            budgets, in the table's unit; None if the table has no accuracies.
        seconds: Time in seconds to choose, adapt and predict.
    """

    device: str
    method: str
    samples: int
    seed: int
    spearman: float
    kendall: float
    mape: float
    median_ape: float
    coverage90: float
    width90: float
    relative_width90: float
    violation: float
    regret: float | None
    seconds: float


@dataclass(frozen=True)
class DeviceSplit:
    """Rows of a table for one device.

    Attributes:
        pool: Rows that may be offered for measurement.
        queries: Rows that are scored.
    """

    pool: Rows
    queries: Rows


def bench_predictor(
    table: CostTable,
    train: Sequence[str],
    test: Sequence[str],
    method: str = "default",
    samples: int = 10,
    pool: int = 900,
    protocol: Protocol = "trimmed",
    seeds: int = 5,
    on_row: Callable[[PredictorRow], None] = lambda row: None,
) -> list[PredictorRow]:
    """Score a method on each test device with each seed.

    Args:
        table: Costs of networks on devices.
        train: Known devices; only their rows of the pool are read.
        test: New devices.
        method: Key of `METHODS`, or ``"module:object"`` of a user's own method.
        samples: Number of measurements of the new device that the method may take, at least 3.
        pool: Number of rows of the pool, which are the first ones of the table.
        protocol: ``"trimmed"`` as HELP scores (Lee et al., NeurIPS 2021), or ``"full"``.
        seeds: Number of seeds, which are 0 to ``seeds - 1``.
        on_row: Function that is called with each row as soon as it is complete.

    Raises:
        ConfigError: A name is unknown, a device is both known and new, or there are too few rows.
    """
    _check(table, train, test, samples, pool, seeds)
    columns = np.array([table.column(device) for device in train])
    known = _pool_rows(table, pool)
    sources = KnownDevices(
        table.space,
        table.codes,
        known,
        tuple(train),
        table.costs[np.ix_(known, columns)],
        None if table.latencies_ms is None else table.latencies_ms[np.ix_(known, columns)],
    )
    learner = resolve("method", method, METHODS)(sources)
    rows = []
    for device in test:
        for seed in range(seeds):
            split = split_rows(table, device, pool, protocol, seed)
            rows.append(_scored(table, device, split, method, learner, samples, seed))
            on_row(rows[-1])
    return rows


def _check(
    table: CostTable, train: Sequence[str], test: Sequence[str], samples: int, pool: int, seeds: int
) -> None:
    both = sorted(set(train) & set(test))
    if both:
        raise ConfigError(f"{', '.join(both)}: a device cannot be in --train and in --test")
    if not train or not test:
        raise ConfigError("--train and --test each need at least one device")
    for device in (*train, *test):
        table.column(device)
    if samples < 3 or seeds < 1:
        raise ConfigError(f"--samples {samples} --seeds {seeds}: expected at least 3 and 1")
    if not 2 * samples <= pool < len(table.costs):
        raise ConfigError(
            f"--pool {pool}: expected at least twice the {samples} samples, since half of the pool "
            f"is offered, and fewer than the {len(table.costs)} rows of the table"
        )


def _pool_rows(table: CostTable, pool: int) -> Rows:
    """Return the rows of the pool; for energy, without networks that are not connected.

    Compilers fold such networks to nothing, so the energy in the table is not that of a network.
    """
    rows = np.arange(pool)
    return rows[table.space.connected(table.codes[:pool])] if table.metric == "energy" else rows


def split_rows(
    table: CostTable, device: str, pool: int, protocol: Protocol, seed: int
) -> DeviceSplit:
    """Return the pool and the queries of one device.

    Args:
        table: Costs of networks on devices.
        device: New device. ``"trimmed"`` drops the fastest and the slowest 10% of pool and queries
            by their true costs on this device, as HELP's code does.
        pool: Number of rows of the pool, which are the first ones of the table.
        protocol: ``"full"`` draws up to 5,000 unseen connected networks; if the table says which
            networks are isomorphic, unseen means that no isomorphic one is in the pool.
        seed: Seed of the queries of ``"full"``.
    """
    known = _pool_rows(table, pool)
    if protocol == "trimmed":
        costs = table.costs[:, table.column(device)]
        queries = np.arange(pool, min(pool + _TRIMMED_QUERIES, len(costs)))
        return DeviceSplit(_trimmed(known, costs), _trimmed(queries, costs))
    unseen = np.arange(pool, len(table.costs))
    if table.representatives is not None:
        of_pool = table.representatives[:pool]
        unseen = unseen[~np.isin(table.representatives[unseen], of_pool)]
    unseen = unseen[table.space.connected(table.codes[unseen])]
    if len(unseen) > _FULL_QUERIES:
        unseen = np.sort(np.random.default_rng(seed).choice(unseen, _FULL_QUERIES, replace=False))
    return DeviceSplit(known, unseen)


def _trimmed(rows: Rows, costs: Numbers) -> Rows:
    drop = int(_TRIMMED_SHARE * len(rows))
    order = np.argsort(costs[rows], kind="stable")
    return np.sort(rows[order[drop : len(rows) - drop]])


def _scored(
    table: CostTable,
    device: str,
    split: DeviceSplit,
    method: str,
    learner: Learner,
    samples: int,
    seed: int,
) -> PredictorRow:
    rng = np.random.default_rng(seed)
    offered = np.sort(rng.permutation(split.pool)[: (len(split.pool) + 1) // 2])
    measure = _Counted(table, table.column(device), frozenset(map(int, offered)), samples)
    start = time.perf_counter()
    forecast = learner.predict(offered, split.queries, samples, measure, rng)
    seconds = time.perf_counter() - start
    true = table.costs[split.queries, table.column(device)]
    errors = np.abs(forecast.cost / true - 1)
    inside = (forecast.lower <= true) & (true <= forecast.upper)
    accuracies = table.accuracy_for(device)
    violation, regret = _choices(
        forecast, true, None if accuracies is None else accuracies[split.queries]
    )
    return PredictorRow(
        device=device,
        method=method,
        samples=len(measure.read),
        seed=seed,
        spearman=float(spearmanr(forecast.cost, true).statistic),
        kendall=float(kendalltau(forecast.cost, true).statistic),
        mape=100 * float(errors.mean()),
        median_ape=100 * float(np.median(errors)),
        coverage90=float(inside.mean()),
        width90=100 * float(np.median(forecast.upper / forecast.lower - 1)),
        relative_width90=100 * float(np.median((forecast.upper - forecast.lower) / forecast.cost)),
        violation=violation,
        regret=regret,
        seconds=seconds,
    )


class _Counted:
    """Measurement function that refuses rows that were not offered, and more than ``samples``."""

    def __init__(
        self, table: CostTable, column: int, offered: frozenset[int], samples: int
    ) -> None:
        self._table, self._column = table, column
        self._offered, self._samples = offered, samples
        self.read: set[int] = set()

    def __call__(self, row: int) -> DeviceMeasurement:
        if row not in self._offered:
            raise ConfigError(
                f"the method measures row {row}, which it was not offered; it may measure offered "
                "rows only"
            )
        self.read.add(row)
        if len(self.read) > self._samples:
            raise ConfigError(
                f"the method takes more than the {self._samples} measurements that are allowed"
            )
        latencies = self._table.latencies_ms
        latency = None if latencies is None else float(latencies[row, self._column])
        return DeviceMeasurement(float(self._table.costs[row, self._column]), latency)


def _choices(
    forecast: Forecast, true: Numbers, accuracies: Numbers | None
) -> tuple[float, float | None]:
    """Return violation in percent and regret of choosing by predicted cost, averaged over budgets.

    Of the networks predicted to be within a budget, the most accurate one is chosen, or the
    costliest one if accuracies are not known. If there are none, the network with the lowest
    predicted cost is chosen.
    """
    worth = forecast.cost if accuracies is None else accuracies
    violations, regrets = [], []
    for budget in np.quantile(true, _BUDGETS):
        within = forecast.cost <= budget
        chosen = (
            np.where(within, worth, -np.inf).argmax() if within.any() else (forecast.cost.argmin())
        )
        violations.append(max(0.0, 100 * (true[chosen] / budget - 1)))
        if accuracies is not None:
            best = accuracies[true <= budget].max()
            regrets.append(max(0.0, float(best - accuracies[chosen])))
    regret = float(np.mean(regrets)) if accuracies is not None else None
    return float(np.mean(violations)), regret
