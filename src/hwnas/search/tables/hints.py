"""Costs of a table's networks that a sampler knows before evaluation: exact or predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.predictors.benchmarks.cost_table import read_arrays
from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.methods import DeviceMeasurement, KnownDevices
from hwnas.predictors.models.transfer import Transfer, transfer
from hwnas.search.samplers import PredictedObjective
from hwnas.search.tables.table import Column, ObjectiveTable, column_names

__all__ = ["Calibration", "known_costs"]

_POOL = 900  # first rows, which supply the known devices' costs and the rows to measure
_META_TRAIN = (
    "1080ti_1", "1080ti_32", "1080ti_256", "1080ti_64", "silver_4114", "silver_4210r",
    "samsung_a50", "pixel3", "essential_ph_1", "samsung_s7",
)  # fmt: skip
"""Meta-training devices of HELP (Lee et al., NeurIPS 2021)."""

PredictedCosts = Mapping[int, PredictedObjective]
"""Expected costs of all rows of a table, by the index of the objective."""


def known_costs(table: ObjectiveTable, array: str) -> PredictedCosts:
    """Return the true values of the objectives that are read from an array, as known costs.

    Raises:
        ConfigError: No objective is read from the array.
    """
    none = np.zeros(len(table.codes))
    found = {
        j: PredictedObjective(column.values, none)
        for j, column in enumerate(table.columns)
        if array in (column.array, column.label)
    }
    if not found:
        names = {column.array for column in table.columns}
        raise ConfigError(f"--known {array!r} is not an objective; {closest(array, names)}")
    return found


@dataclass(frozen=True)
class Calibration:
    """Device predictors of the objectives for which the files also hold other devices' costs.

    Attributes:
        samples: Number of rows measured for each objective.
        learners: Predictor trained on the other devices, by the index of the objective.
    """

    samples: int
    learners: Mapping[int, Transfer]

    @classmethod
    def of(cls, table: ObjectiveTable, samples: int, train: Sequence[str] = ()) -> Calibration:
        """Train a predictor for each objective on the other devices in its file.

        Args:
            table: Table of the objectives.
            samples: Number of measurements for each objective, at least 3.
            train: Names of the training devices. If empty, those of HELP's meta-training set that
                the file has; if it has none, all but the objective's own device.

        Raises:
            ConfigError: ``samples`` is out of range, a device is unknown, or no objective is a
                column of an array with several devices.
        """
        if samples < 3:
            raise ConfigError(f"--calibrate {samples}: expected at least 3")
        if 2 * samples > min(_POOL, len(table.codes)):
            raise ConfigError(
                f"--calibrate {samples}: expected at most half of {min(_POOL, len(table.codes))} "
                "networks"
            )
        learners = {}
        for j, column in enumerate(table.columns):
            if column.direction == "minimize" and column.column:
                learners[j] = transfer(_sources(table, column, train))
        if not learners:
            raise ConfigError(
                "--calibrate: no objective is a column of an array with several devices, such as "
                "lat.npz:lat_ms[fpga]:min; use --known, or neither option"
            )
        return cls(samples, learners)

    def predict(self, table: ObjectiveTable, seed: int) -> PredictedCosts:
        """Predict the costs of all rows from measurements of some of the first 900 rows."""
        rng = np.random.default_rng(seed)
        pool = np.arange(min(_POOL, len(table.codes)))
        offered = np.sort(rng.permutation(pool)[: (len(pool) + 1) // 2])
        every = np.arange(len(table.codes))
        found = {}
        for j, learner in self.learners.items():
            measure = _reader(table.columns[j].values)
            forecast = learner.predict(offered, every, self.samples, measure, rng)
            reach = np.log(forecast.upper / forecast.lower) / (2 * NORMAL_90)
            found[j] = PredictedObjective(forecast.cost, reach)
        return found


def _reader(values: Numbers) -> Callable[[int], DeviceMeasurement]:
    return lambda row: DeviceMeasurement(float(values[row]))


def _sources(table: ObjectiveTable, column: Column, train: Sequence[str]) -> KnownDevices:
    arrays = read_arrays(column.file)
    costs: Numbers = arrays[column.array].astype(np.float64)
    names = column_names(arrays, costs.shape[1]) or [str(i) for i in range(costs.shape[1])]
    own = column.column if column.column in names else names[int(column.column)]
    others = [name for name in names if name != own]
    for name in train:
        if name not in others:
            raise ConfigError(
                f"--train {name!r} is not another device of {column.file}; {closest(name, others)}"
            )
    known = list(train) or [name for name in others if name in _META_TRAIN] or others
    if not known:
        raise ConfigError(
            f"{column.file} has no device besides {own}; use --known, or neither option"
        )
    pool = np.arange(min(_POOL, len(table.codes)))
    columns = np.array([names.index(name) for name in known])
    return KnownDevices(table.space, table.codes, pool, tuple(known), costs[np.ix_(pool, columns)])
