"""How much of the true front a sampler finds in a table, against the evaluations it takes."""

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
from hwnas.predictors.gaussian_process import Numbers
from hwnas.predictors.shipped_scores import shipped_scores
from hwnas.search.front import non_dominated
from hwnas.search.objective import Direction
from hwnas.search.samplers import Knowledge, PlannedSampler, Price, make_sampler
from hwnas.search.tables.hints import Calibration, known_prices
from hwnas.search.tables.table import Column, ObjectiveTable
from hwnas.search.tables.yardstick import Rows, Yardstick, tight_box, wide_box
from hwnas.search_spaces.tabular import Codes

__all__ = ["SearchRow", "bench_search", "searched_rows"]

_MILESTONES = (25, 50, 100, 200)
_BATCH = 5


@dataclass(frozen=True)
class SearchRow:
    """What a sampler had found after some evaluations.

    Attributes:
        sampler: Its name.
        seed: Of the sampler and of what it was told.
        evals: Evaluations, repeats counted.
        hypervolume: Share of the true front's hypervolume in the tight box, 0 to 1.
        hypervolume_wide: The same in the wide box.
        hypervolume_test: In the tight box of the test table, that of the front that was chosen by
            the first table; None without a test table.
        unique: Different networks that were evaluated.
        calibration_samples: Measurements of the cost beside the evaluations.
        seconds: That the sampler took.
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
    """Search a table with each seed.

    Args:
        table: The objectives.
        sampler: See `hwnas.search.SAMPLERS`.
        evals: Evaluations of each search, at most as many as there are networks.
        seeds: Seeds 0 to ``seeds - 1``.
        test: The same networks with objectives that nothing is chosen by.
        known: Array whose values are known before they are evaluated.
        calibration: Predicts costs from a few rows instead.
        options: Of the sampler.
        on_row: Called with each row as soon as it is there.

    Raises:
        ConfigError: A name is unknown, or numbers are out of range.
    """
    if known is not None and calibration is not None:
        raise ConfigError("--known and --calibrate exclude each other; give one of them")
    if not 1 <= evals <= len(table.row_of) or seeds < 1:
        raise ConfigError(
            f"--evals {evals} --seeds {seeds}: expected 1 to {len(table.row_of)} evaluations, as "
            "many as there are networks, and at least 1 seed"
        )
    measure = _Measure(table, test)
    prices = {} if known is None else known_prices(table, known)
    rows = []
    for seed in range(seeds):
        if calibration is not None:
            prices = calibration.prices(table, seed)
        samples = 0 if calibration is None else calibration.samples * len(calibration.learners)
        knowledge = knowledge_of(table, prices)
        made = make_sampler(sampler, seed, options or {}, evals, _BATCH, knowledge)
        found, seconds = searched_rows(table, made, evals)
        for count in sorted({*(n for n in _MILESTONES if n < evals), evals}):
            row = measure(sampler, seed, found[:count], samples, seconds[count - 1])
            rows.append(row)
            on_row(row)
    return rows


def knowledge_of(table: ObjectiveTable, prices: Mapping[int, Price]) -> Knowledge:
    """What a sampler may know of a table: its networks, what is counted of them, prices."""

    def of_rows(values: Numbers | None) -> Callable[[Codes], Numbers] | None:
        return None if values is None else lambda codes: values[table.rows_of(codes)]

    def priced(codes: Codes) -> dict[int, Price]:
        rows = table.rows_of(codes) if prices else slice(0)
        return {j: Price(p.values[rows], p.deviations[rows]) for j, p in prices.items()}

    return Knowledge(
        {f"position{i}": range(count) for i, count in enumerate(table.space.options)},
        of_rows(table.statistics),
        of_rows(shipped_scores(table.space, table.codes)),
        of_rows(table.size),
        priced,
        alike=table.space.canonical,
        rows=table.codes[np.sort(list(table.row_of.values()))],
        ordered=table.statistics is None,
    )


def searched_rows(
    table: ObjectiveTable, sampler: BaseSampler, evals: int
) -> tuple[Rows, list[float]]:
    """Rows that a sampler evaluates, one after the other, and its seconds up to each."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    told = [_told(column, sampler) for column in table.columns]
    study = optuna.create_study(
        storage=InMemoryStorage(),
        directions=[direction for direction, _ in told],
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
        study.tell(trial, [float(values[row]) for _, values in told])
        spent += time.perf_counter() - start
        rows.append(row)
        seconds.append(spent)
    return np.array(rows, dtype=np.int64), seconds


def _told(column: Column, sampler: BaseSampler) -> tuple[Direction, Numbers]:
    """Direction and values of an objective as a sampler is told of them.

    Optuna's samplers get errors in the place of accuracies: the reference point of its TPE is the
    worst value times 1.1, which does better on errors than on negated accuracies.
    """
    most = 100.0 if column.values.max() > 1 else 1.0
    inside = column.values.min() >= 0 and column.values.max() <= most
    if isinstance(sampler, PlannedSampler) or column.direction == "minimize" or not inside:
        return column.direction, column.values
    return "minimize", most - column.values


class _Nearest:
    """The row of a proposal; in a table that is no full grid, the nearest row that is unseen."""

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
    """Scores what was found."""

    table: ObjectiveTable
    test: ObjectiveTable | None

    @cached_property
    def _boxes(self) -> tuple[Yardstick, Yardstick]:
        return tight_box(self.table), wide_box(self.table)

    @cached_property
    def _test_box(self) -> Yardstick | None:
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
