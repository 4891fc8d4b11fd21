from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.search.samplers import SAMPLERS
from hwnas.search.tables import (
    Calibration,
    ObjectiveTable,
    bench_search,
    known_costs,
    read_objective_table,
    read_test_table,
)

OURS = ("guided", "linas", "forest", "surrogate-nsga2", "proxy-order")


@pytest.fixture
def table(files: Path) -> ObjectiveTable:
    return read_objective_table([f"{files}/acc.npz:val:max", f"{files}/lat.npz:lat_ms[fpga]:min"])


def test_bench_search_rows_have_the_fixed_fields(table: ObjectiveTable, files: Path) -> None:
    test = read_test_table(table, [f"{files}/acc.npz:test:max"])
    rows = bench_search(table, "random", 50, 2, test=test)
    assert [(row.seed, row.evals) for row in rows] == [(0, 25), (0, 50), (1, 25), (1, 50)]
    assert list(asdict(rows[0])) == [
        "sampler", "seed", "evals", "hypervolume", "hypervolume_wide", "hypervolume_test",
        "unique", "calibration_samples", "seconds",
    ]  # fmt: skip
    for row in rows:
        assert 0 <= row.hypervolume <= 1
        assert 0 <= row.hypervolume_wide <= 1
        assert row.hypervolume_test is not None
        assert row.unique < row.evals  # 50 random draws of 64 repeat some
        assert row.calibration_samples == 0
    assert bench_search(table, "random", 30, 1)[-1].hypervolume_test is None


@pytest.mark.parametrize("sampler", OURS)
def test_own_samplers_repeat_no_network(table: ObjectiveTable, sampler: str) -> None:
    rows = bench_search(table, sampler, 50, 1, known="lat_ms")
    assert rows[-1].unique == 50


def test_guided_sampler_can_evaluate_every_network(table: ObjectiveTable) -> None:
    row = bench_search(table, "guided", 64, 1)[-1]
    assert row.unique == 64
    assert row.hypervolume == pytest.approx(1.0)


def test_guided_sampler_finds_more_hypervolume_than_random(table: ObjectiveTable) -> None:
    found = {
        sampler: fmean(r.hypervolume for r in bench_search(table, sampler, 25, 3, known=known))
        for sampler, known in (("random", None), ("guided", "lat_ms"))
    }
    assert found["guided"] > found["random"] + 0.05
    assert found["guided"] > 0.97


def test_bench_search_takes_the_nearest_row_for_a_missing_one(files: Path) -> None:
    whole = dict(np.load(files / "lat.npz"))
    kept = np.arange(0, 64, 2)
    np.savez(files / "half.npz", choice=whole["choice"][kept], macs=whole["macs"][kept])
    table = read_objective_table([f"{files}/half.npz:macs:min"])
    for sampler in ("random", "tpe", "guided"):
        assert bench_search(table, sampler, 32, 1)[-1].unique == 32


def test_calibrated_prediction_is_near_the_cost(table: ObjectiveTable) -> None:
    calibration = Calibration.of(table, 5)
    (cost,) = calibration.predict(table, 0).values()
    true = table.columns[1].values
    assert np.median(np.abs(cost.values / true - 1)) < 0.1
    assert (cost.deviations > 0).all()
    row = bench_search(table, "guided", 25, 1, calibration=calibration)[-1]
    assert row.calibration_samples == 5


def test_known_costs_equal_the_costs_of_the_table(table: ObjectiveTable) -> None:
    predicted = known_costs(table, "lat_ms")
    assert list(predicted) == [1]
    assert np.array_equal(predicted[1].values, table.columns[1].values)


def test_bench_search_and_calibration_refuse_invalid_arguments(
    table: ObjectiveTable, files: Path
) -> None:
    with pytest.raises(ConfigError, match="--evals 65"):
        bench_search(table, "random", 65, 1)
    with pytest.raises(ConfigError, match="unknown sampler 'gided'; did you mean 'guided'"):
        bench_search(table, "gided", 10, 1)
    with pytest.raises(
        ConfigError, match="--known 'lat' is not an objective; did you mean 'lat_ms'"
    ):
        bench_search(table, "guided", 10, 1, known="lat")
    calibration = Calibration.of(table, 5)
    with pytest.raises(ConfigError, match="exclude each other"):
        bench_search(table, "guided", 10, 1, known="lat_ms", calibration=calibration)
    with pytest.raises(ConfigError, match="--calibrate 2: expected at least 3"):
        Calibration.of(table, 2)
    assert Calibration.of(table, 3).samples == 3
    with pytest.raises(ConfigError, match="--train 'phones' is not another device"):
        Calibration.of(table, 5, ["phones"])
    with pytest.raises(ConfigError, match="--train 'fpga' is not another device"):
        Calibration.of(table, 5, ["fpga"])
    counted = read_objective_table([f"{files}/acc.npz:val:max", f"{files}/lat.npz:macs:min"])
    with pytest.raises(
        ConfigError, match="no objective is a column of an array with several devices"
    ):
        Calibration.of(counted, 5)


def test_samplers_include_the_compared_names() -> None:
    wanted = {"random", "tpe", "gp", "nsga2", "nsga3", *OURS}
    assert wanted <= set(SAMPLERS)
