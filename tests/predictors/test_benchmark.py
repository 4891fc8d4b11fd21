"""The predictor benchmark: what every method must satisfy, the split of rows, and refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.predictors.benchmarks.benchmark import METHODS, PredictorRow, bench_predictor, split_rows
from hwnas.predictors.benchmarks.cost_table import CostTable
from hwnas.predictors.models.methods import Forecast, KnownDevices, Measure, Rows
from hwnas.search_spaces.tabular import CategoricalSpace

TRAIN, TEST = ["slow", "server", "chip"], ["core", "gpu"]


def bench(table: CostTable, method: str, **options: object) -> list[PredictorRow]:
    given = {"samples": 8, "pool": 200, "protocol": "full", "seeds": 1, **options}
    return bench_predictor(table, TRAIN, TEST, method, **given)  # type: ignore[arg-type]


@pytest.fixture
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train neural methods only briefly: the checks hold for them even then."""
    monkeypatch.setattr("hwnas.predictors.models.neural._EPISODES", 150)
    monkeypatch.setattr("hwnas.predictors.features.sequence._STEPS", 60)


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    @pytest.mark.slow
    def test_gets_a_score_for_each_test_device(self, table: CostTable, method: str) -> None:
        rows = bench(table, method)
        assert [row.device for row in rows] == TEST
        for row in rows:
            assert row.samples == 8
            assert 0.5 < row.spearman <= 1
            assert abs(row.kendall) <= row.spearman
            assert 0 < row.median_ape < 60
            assert 0 <= row.coverage90 <= 1
            assert row.width90 > 0
            assert row.violation >= 0
            assert row.regret is not None
            assert row.regret >= 0

    @pytest.mark.slow
    def test_gives_the_same_scores_for_the_same_seed(self, table: CostTable, method: str) -> None:
        first, second = (
            [dataclasses.replace(row, seconds=0.0) for row in bench(table, method)]
            for _ in range(2)
        )
        assert first == second

    @pytest.mark.slow
    def test_does_not_use_the_costs_that_it_is_scored_on(
        self, table: CostTable, method: str
    ) -> None:
        """Changed costs of queries, or of other new devices, change no score."""
        hidden = table.costs.copy()
        hidden[200:, [table.column(device) for device in TRAIN]] = 1.0  # beyond the pool
        other = dataclasses.replace(table, costs=hidden)
        for a, b in zip(bench(table, method), bench(other, method), strict=True):
            assert a.spearman == b.spearman
        swapped = table.costs.copy()
        swapped[:, table.column("gpu")] = np.random.default_rng(0).permutation(
            swapped[:, table.column("gpu")]
        )
        other = dataclasses.replace(table, costs=swapped)
        core, other_core = bench(table, method)[0], bench(other, method)[0]
        assert core.spearman == other_core.spearman


def test_default_method_is_accurate_and_its_intervals_cover_costs(table: CostTable) -> None:
    rows = bench(table, "default", seeds=2, samples=10)
    rivals = bench(table, "macs", seeds=2, samples=10)
    assert np.mean([row.spearman for row in rows]) > 0.97
    assert np.mean([row.spearman for row in rows]) > np.mean([row.spearman for row in rivals])
    assert np.mean([row.median_ape for row in rows]) < 6
    assert 0.75 < np.mean([row.coverage90 for row in rows]) <= 1


def test_trimmed_split_drops_extreme_costs_and_full_split_does_not(table: CostTable) -> None:
    column = table.costs[:, table.column("gpu")]
    trimmed = split_rows(table, "gpu", 200, "trimmed", 0)
    assert len(trimmed.pool) == 160
    assert trimmed.pool.max() < 200 <= trimmed.queries.min()
    assert len(trimmed.queries) == 320
    dropped = np.setdiff1d(np.arange(200), trimmed.pool)
    inner = column[trimmed.pool]
    assert ((column[dropped] <= inner.min()) | (column[dropped] >= inner.max())).all()
    full = split_rows(table, "gpu", 200, "full", 0)
    assert len(full.pool) == 200
    assert table.space.connected(table.codes[full.queries]).all()
    assert len(full.queries) == table.space.connected(table.codes[200:]).sum()


def test_split_keeps_isomorphic_networks_together(table: CostTable) -> None:
    representatives = np.arange(len(table.costs)) % 250  # 200 to 249 are not in the pool
    split = split_rows(
        dataclasses.replace(table, representatives=representatives), "gpu", 200, "full", 0
    )
    assert set(representatives[split.queries]) <= set(range(200, 250))


def test_energy_pool_leaves_out_disconnected_networks(table: CostTable) -> None:
    energies = dataclasses.replace(table, metric="energy")
    pool = split_rows(energies, "gpu", 200, "full", 0).pool
    assert table.space.connected(table.codes[pool]).all()
    assert len(pool) < 200


def test_benchmark_scores_tied_costs_and_categorical_spaces(table: CostTable) -> None:
    space = CategoricalSpace((0,) * 6, (5,) * 6)
    coarse = np.maximum(np.round(table.costs, 0), 1.0)
    rows = bench(dataclasses.replace(table, space=space, costs=coarse), "default")
    assert all(math.isfinite(row.spearman) for row in rows)
    with pytest.raises(ConfigError, match="method macs needs the operators of the networks"):
        bench(dataclasses.replace(table, space=space), "macs")


class Greedy:
    """Method that measures one row more than it may."""

    def __init__(self, sources: KnownDevices) -> None:
        self.sources = sources

    def predict(
        self, offered: Rows, queries: Rows, samples: int, measure: Measure, rng: object
    ) -> Forecast:
        for row in self.wanted(offered, queries, samples):
            measure(row)
        raise AssertionError("it was let")

    def wanted(self, offered: Rows, queries: Rows, samples: int) -> Iterator[int]:
        yield from map(int, offered[: samples + 1])


class Peeking(Greedy):
    """Method that measures a query, which was not offered."""

    def wanted(self, offered: Rows, queries: Rows, samples: int) -> Iterator[int]:
        yield int(queries[0])


@pytest.mark.parametrize(
    ("method", "message"), [(Greedy, "more than the 8"), (Peeking, "not offered")]
)
def test_benchmark_refuses_measurements_that_are_not_allowed(
    table: CostTable, method: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "greedy", method)
    with pytest.raises(ConfigError, match=message):
        bench(table, "greedy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 2}, "at least 3"),
        ({"pool": 12}, "twice the 8 samples"),
        ({"pool": 600}, "fewer than the 600 rows"),
        ({"seeds": 0}, "--seeds 0"),
    ],
)
def test_benchmark_refuses_invalid_sizes(
    table: CostTable, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(table, "ridge", **options)


def test_benchmark_refuses_wrong_devices_and_unknown_methods(table: CostTable) -> None:
    with pytest.raises(ConfigError, match="did you mean 'server'"):
        bench_predictor(table, ["serve"], TEST)
    with pytest.raises(ConfigError, match="gpu: a device cannot be in"):
        bench_predictor(table, ["gpu"], ["gpu"])
    with pytest.raises(ConfigError, match="unknown method 'ridges'"):
        bench(table, "ridges")
    with pytest.raises(ConfigError, match="at least one device"):
        bench_predictor(table, [], TEST)
