from __future__ import annotations

import mmap
import random

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.predictors.features.physical import physical_features
from hwnas.search.engine.benchmark import EngineRow, _ManyChoices, bench_engine, pss_mb
from hwnas.search_spaces import OperatorCountTable


@pytest.mark.slow
def test_bench_engine_gives_a_row_per_hundred_trials_and_for_the_rest() -> None:
    seen: list[EngineRow] = []
    rows = bench_engine(130, 4, "random", on_row=seen.append)
    assert rows == seen
    assert [row.trials for row in rows] == [100, 130]
    for row in rows:
        assert (row.sampler, row.choices) == ("random", 4)
        assert 0 < row.cpu_ms_per_trial < 1000
        assert 0 < row.ms_per_trial < 1000
        assert row.pss_mb > 50


def test_benchmark_space_counts_costs_from_codes_as_from_workloads() -> None:
    space = _ManyChoices(4)
    networks = [space.sample(random.Random(seed)) for seed in range(5)]
    codes = np.array([space.encode(network) for network in networks])
    workloads = [space.workload(network) for network in networks]
    counted = space.counted(codes)
    assert counted["macs"].tolist() == [w.macs for w in workloads]
    assert counted["params"].tolist() == [w.params for w in workloads]
    assert counted["weight_bytes"].tolist() == [w.weight_bytes for w in workloads]
    drafted, traced = space.steps(codes), OperatorCountTable.of_workloads(workloads)
    np.testing.assert_allclose(physical_features(drafted), physical_features(traced))


def test_bench_engine_refuses_an_unknown_sampler() -> None:
    with pytest.raises(ConfigError, match="unknown sampler 'nsga9'"):
        bench_engine(10, 4, "nsga9")


@pytest.mark.slow
def test_pss_mb_grows_by_the_size_of_a_mapped_block() -> None:
    before = pss_mb()
    # Mapped, since the heap may have as much that was used before and is free again.
    with mmap.mmap(-1, 240_000_000) as held:
        held.write(b"x" * len(held))
        held.flush()
        assert 200 < pss_mb() - before < 280
