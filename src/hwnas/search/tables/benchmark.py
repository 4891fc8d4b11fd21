"""Benchmark of a sampler on a table: normalised hypervolume against the number of evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage

from hwnas.errors import ConfigError
from hwnas.predictors.features.shipped_scores import shipped_scores
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search.objectives.front import non_dominated
from hwnas.search.objectives.objective import Direction
from hwnas.search.samplers import BatchSampler, PredictedObjective, SpaceFeatures, make_sampler
from hwnas.search.tables.hints import Calibration, known_costs
from hwnas.search.tables.hypervolume_metric import HypervolumeMetric, Rows, tight_box, wide_box
from hwnas.search.tables.table import Column, ObjectiveTable
from hwnas.search_spaces.tabular import Codes

__all__ = ["SearchRow", "bench_search", "searched_rows"]

_MILESTONES = (25, 50, 100, 200)
_BATCH = 5


@dataclass(frozen=True)
class SearchRow:
    """Result of a sampler after a number of evaluations.

    Attributes:
        sampler: Name of the sampler.
        seed: Seed of the sampler and of the calibration.
        evals: Number of evaluations, repeats included.
        hypervolume: Normalised hypervolume in the tight box, 0 to 1.
        hypervolume_wide: Normalised hypervolume in the wide box, 0 to 1.
        hypervolume_test: Normalised hypervolume in the tight box of the test table, of the front
            that was selected by the searched table; None without a test table.
        unique: Number of distinct networks evaluated.
        calibration_samples: Number of cost measurements in addition to the evaluations.
        seconds: Time spent in the sampler, in seconds.
    """

    sampler: str
    seed: int
    evals: int
    hypervolume: float
    hypervolume_wide: float
    hypervolume_test: float | None
    unique: int
    calibration_samples: int
    seconds: float


def bench_search(
    table: ObjectiveTable,
    sampler: str = "guided",
    evals: int = 100,
    seeds: int = 10,
    *,
    test: ObjectiveTable | None = None,
    known: str | None = None,
    calibration: Calibration | None = None,
    options: Mapping[str, Any] | None = None,
    on_row: Callable[[SearchRow], None] = lambda row: None,
) -> list[SearchRow]:
    """Search a table once with each seed.

    Args:
        table: Table of networks and objectives.
        sampler: Name of the sampler; see `hwnas.search.SAMPLERS`.
        evals: Number of evaluations of each search, at most the number of networks.
        seeds: Number of searches; their seeds are 0 to ``seeds - 1``.
        test: Table of the same networks with objectives that only score the final front.
        known: Array whose values are known to the sampler before evaluation.
        calibration: Predictors of costs from a few measured rows, in place of ``known``.
        options: Options of the sampler.
        on_row: Callback for each row, as soon as it is computed.

    Raises:
        ConfigError: A name is unknown, a number is out of range, or both ``known`` and
            ``calibration`` are given.
    """
    if known is not None and calibration is not None:
        raise ConfigError("--known and --calibrate exclude each other; give one of them")
    if not 1 <= evals <= len(table.row_of) or seeds < 1:
        raise ConfigError(
            f"--evals {evals} --seeds {seeds}: expected 1 to {len(table.row_of)} evaluations, as "
            "many as there are networks, and at least 1 seed"
        )
    measure = _Measure(table, test)
    predicted = {} if known is None else known_costs(table, known)
    rows = []
    for seed in range(seeds):
        if calibration is not None:
            predicted = calibration.predict(table, seed)
        samples = 0 if calibration is None else calibration.samples * len(calibration.learners)
        features = features_of_table(table, predicted)
        made = make_sampler(sampler, seed, options or {}, evals, _BATCH, features)
        found, seconds = searched_rows(table, made, evals)
        for count in sorted({*(n for n in _MILESTONES if n < evals), evals}):
            row = measure(sampler, seed, found[:count], samples, seconds[count - 1])
            rows.append(row)
            on_row(row)
    return rows


def features_of_table(
    table: ObjectiveTable, predicted: Mapping[int, PredictedObjective]
) -> SpaceFeatures:
    """Return a table's description for a sampler: networks, features, proxies, predicted costs.

    Networks whose output does not depend on their input are excluded from evaluation.
    """

    def of_rows(values: Numbers | None) -> Callable[[Codes], Numbers] | None:
        return None if values is None else lambda codes: values[table.rows_of(codes)]

    def predict(codes: Codes) -> dict[int, PredictedObjective]:
        rows = table.rows_of(codes) if predicted else slice(0)
        return {
            j: PredictedObjective(p.values[rows], p.deviations[rows]) for j, p in predicted.items()
        }

    return SpaceFeatures(
        {f"position{i}": range(count) for i, count in enumerate(table.space.options)},
        of_rows(table.statistics),
        of_rows(shipped_scores(table.space, table.codes)),
        of_rows(table.size),
        predict,
        lambda codes: table.connected[table.rows_of(codes)],
        alike=table.space.canonical,
        rows=table.codes[np.sort(list(table.row_of.values()))],
        ordered=table.statistics is None,
    )


def searched_rows(
    table: ObjectiveTable, sampler: BaseSampler, evals: int
) -> tuple[Rows, list[float]]:
    """Return the rows that a sampler evaluates, in order, and its cumulative seconds at each."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    minimised = [_minimised(column, sampler) for column in table.columns]
    study = optuna.create_study(
        storage=InMemoryStorage(),
        directions=[direction for direction, _ in minimised],
        sampler=sampler,
    )
    nearest = _Nearest(table)
    options = [(f"position{i}", tuple(range(n))) for i, n in enumerate(table.space.options)]
    rows, seconds, spent = [], [], 0.0
    for _ in range(evals):
        start = time.perf_counter()
        trial = study.ask()
        code = np.array([trial.suggest_categorical(*option) for option in options])
        spent += time.perf_counter() - start
        row = nearest(code)
        start = time.perf_counter()
        study.tell(trial, [float(values[row]) for _, values in minimised])
        spent += time.perf_counter() - start
        rows.append(row)
        seconds.append(spent)
    return np.array(rows, dtype=np.int64), seconds


def _minimised(column: Column, sampler: BaseSampler) -> tuple[Direction, Numbers]:
    """Return the direction and values of an objective as they are given to a sampler.

    Optuna's samplers are given errors in place of accuracies: the reference point of Optuna's TPE
    is the worst value times 1.1, which works better with errors than with negated accuracies.
    """
    most = 100.0 if column.values.max() > 1 else 1.0
    inside = column.values.min() >= 0 and column.values.max() <= most
    if isinstance(sampler, BatchSampler) or column.direction == "minimize" or not inside:
        return column.direction, column.values
    return "minimize", most - column.values


class _Nearest:
    """Lookup of a proposal's row in the table.

    If the table does not hold every code, the nearest row (Hamming distance) that was not returned
    before is used.
    """

    def __init__(self, table: ObjectiveTable) -> None:
        self._table = table
        self._left = None if table.is_grid else np.sort(list(table.row_of.values()))

    def __call__(self, code: Codes) -> int:
        if self._left is None:
            return self._table.row_of[np.ascontiguousarray(code, np.int64).tobytes()]
        apart = (self._table.codes[self._left] != code).sum(1)
        place = int(apart.argmin())
        row = int(self._left[place])
        self._left = np.delete(self._left, place)
        return row


@dataclass(frozen=True)
class _Measure:
    """Scorer of the rows that a sampler has evaluated."""

    table: ObjectiveTable
    test: ObjectiveTable | None

    @cached_property
    def _boxes(self) -> tuple[HypervolumeMetric, HypervolumeMetric]:
        return tight_box(self.table), wide_box(self.table)

    @cached_property
    def _test_box(self) -> HypervolumeMetric | None:
        return None if self.test is None else tight_box(self.test)

    def __call__(
        self, sampler: str, seed: int, rows: Rows, samples: int, seconds: float
    ) -> SearchRow:
        tight, wide = self._boxes
        unique = np.unique(rows)
        chosen = unique[non_dominated(self.table.losses[unique])]
        test = None if self._test_box is None else self._test_box.share(chosen)
        return SearchRow(
            sampler,
            seed,
            len(rows),
            tight.share(unique),
            wide.share(unique),
            test,
            len(unique),
            samples,
            seconds,
        )
