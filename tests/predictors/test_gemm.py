from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from hwnas.deploy import RUNTIMES, Target
from hwnas.deploy.onnx.workload import read_workload
from hwnas.errors import ConfigError
from hwnas.predictors.metrics.gemm import Gemm, sampled_gemms, steady_ms, time_gemms, write_gemm
from hwnas.predictors.metrics.gemm_model import GemmModel

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")
SEEN = Gemm(16, 16, 16), Gemm(512, 512, 512)
BEYOND = {
    "larger": (Gemm(513, 513, 513), Gemm(2048, 2048, 2048)),
    "more_rows": (Gemm(1000, 16, 16), Gemm(4000, 512, 512)),
    "more_columns": (Gemm(16, 1000, 16), Gemm(512, 4000, 512)),
    "deeper": (Gemm(16, 16, 1000), Gemm(512, 512, 4000)),
    "fewer_rows": (Gemm(1, 16, 16), Gemm(15, 512, 512)),
    "smaller": (Gemm(1, 1, 1), Gemm(15, 15, 15)),
}


def drawn(count: int, corners: tuple[Gemm, Gemm], seed: int = 0) -> list[Gemm]:
    return sampled_gemms(count, np.random.default_rng(seed), *corners, max_macs=2**33)


def true_ms(gemm: Gemm, threads: int = 1) -> float:
    """Simulate a machine: tiles of 8 x 32, slow memory, and threads started for large products."""
    tiles = -(-gemm.m // 8) * -(-gemm.n // 32)
    computing = tiles * (2e-6 + 8 * 32 * gemm.k / 80e6)
    moving = 4 * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n) / 20e6
    busy = max(computing, moving) + 0.3 * min(computing, moving)
    return 0.005 + (0.02 + busy / threads if threads > 1 and gemm.macs >= 2**16 else busy)


def timed(gemms: list[Gemm], threads: int = 1, noise: float = 0.02, seed: int = 0) -> list[float]:
    factors = np.exp(noise * np.random.default_rng(seed).standard_normal(len(gemms)))
    return [
        float(true_ms(gemm, threads) * factor) for gemm, factor in zip(gemms, factors, strict=True)
    ]


def fitted(threads: int = 1, count: int = 200) -> GemmModel:
    known = drawn(count, SEEN)
    return GemmModel.fit(TARGET.name, known, timed(known, threads))


@pytest.mark.slow
@pytest.mark.parametrize("beyond", BEYOND)
def test_gemm_model_predicts_products_beyond_the_timed_sizes(beyond: str) -> None:
    new = drawn(60, BEYOND[beyond], seed=1)
    truth = np.array([true_ms(gemm) for gemm in new])
    estimates = fitted().predict(new)
    errors = np.abs([estimate.mean for estimate in estimates] / truth - 1)
    assert errors.mean() < 0.1
    assert {(e.metric, e.target, e.kind) for e in estimates} == {
        ("latency_ms", TARGET.name, "predicted")
    }


@pytest.mark.slow
def test_gemm_model_intervals_cover_products_beyond_the_timed_sizes() -> None:
    new = [gemm for corners in BEYOND.values() for gemm in drawn(60, corners, seed=1)]
    truth = np.array([true_ms(gemm) for gemm in new])
    low, high = np.array([estimate.interval90 for estimate in fitted().predict(new)]).T
    assert ((low <= truth) & (truth <= high)).mean() > 0.8


@pytest.mark.slow
def test_gemm_model_learns_the_cost_of_starting_threads() -> None:
    new = [*drawn(60, SEEN, seed=1), *drawn(60, BEYOND["larger"], seed=1)]
    found = np.array([estimate.mean for estimate in fitted(threads=2).predict(new)])
    assert np.abs(found / [true_ms(gemm, threads=2) for gemm in new] - 1).mean() < 0.1


@pytest.mark.slow
def test_gemm_model_intervals_cover_costs_and_widen_with_distance() -> None:
    model, new = fitted(), drawn(300, SEEN, seed=1)
    estimates, truth = model.predict(new), timed(new, seed=1)
    low, high = np.array([estimate.interval90 for estimate in estimates]).T
    assert 0.8 < ((low <= truth) & (truth <= high)).mean() < 0.98
    near, far = model.predict([Gemm(300, 300, 300), Gemm(30_000, 30_000, 30_000)])
    assert far.std / far.mean > near.std / near.mean


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_gemm_model_is_monotone_in_each_size(threads: int) -> None:
    sizes = [1, 2, 3, 8, 15, 16, 17, 48, 64, 100, 500, 512, 513, 2000]
    model = fitted(threads)
    for make in (
        lambda size: Gemm(size, 64, 64),
        lambda size: Gemm(64, size, 64),
        lambda size: Gemm(64, 64, size),
    ):
        means = [estimate.mean for estimate in model.predict([make(size) for size in sizes])]
        assert means == sorted(means)


@pytest.mark.slow
def test_work_of_a_product_counts_whole_tiles() -> None:
    work = Gemm(5, 17, 300).work
    assert work[:4] == (1, 5 * 300, 17 * 300, 5 * 17)
    narrow = work[4:6], work[6:8]  # strips of 16 columns: 2; tiles of 4 rows: 2
    assert narrow == ((5 * 2 * 300, 5 * 2 * 2), (2 * 2, 2 * 2 * 300))


def test_gemm_model_is_deterministic_and_survives_pickling() -> None:
    new = drawn(5, BEYOND["larger"])
    assert fitted().predict(new) == pickle.loads(pickle.dumps(fitted())).predict(new)
    assert fitted().predict([]) == []


def test_steady_ms_corrects_for_a_machine_that_becomes_slower() -> None:
    found = steady_ms([1.0, 1.5, 4.0], [0.1, 0.15, 0.2])
    np.testing.assert_allclose(found, [1.5, 1.5, 3.0])


def test_gemm_model_learns_energy() -> None:
    known = drawn(40, SEEN)
    model = GemmModel.fit(TARGET.name, known, [0.5 + 1e-6 * g.macs for g in known], "energy_mj")
    (found,) = model.predict([Gemm(1024, 1024, 1024)])
    assert found.metric == "energy_mj"
    assert found.mean == pytest.approx(0.5 + 1e-6 * 2**30, rel=0.1)


def test_sampled_gemms_are_repeatable_and_cover_the_range() -> None:
    gemms = sampled_gemms(200, np.random.default_rng(0), Gemm(4, 1, 1), Gemm(64, 2048, 999), 10**6)
    assert len(set(gemms)) == 200
    assert gemms == sampled_gemms(
        200, np.random.default_rng(0), Gemm(4, 1, 1), Gemm(64, 2048, 999), 10**6
    )
    assert max(gemm.macs for gemm in gemms) <= 10**6
    assert {gemm.m for gemm in gemms} <= set(range(4, 65))
    assert max(gemm.n for gemm in gemms) > 1000
    assert min(gemm.k for gemm in gemms) < 4
    assert 0.2 < np.mean([gemm.n % 16 == 0 for gemm in gemms]) < 0.6


def test_write_gemm_writes_a_model_that_computes_the_product(tmp_path: Path) -> None:
    path, gemm = tmp_path / "gemm.onnx", Gemm(3, 5, 7)
    write_gemm(gemm, path)
    assert read_workload(path).workload.macs == gemm.macs
    session = RUNTIMES["onnxruntime"].load(path, TARGET)
    rows = np.random.default_rng(0).standard_normal((1, 3, 7), dtype=np.float32)
    weight = np.cos(np.arange(35)).reshape(7, 5)
    np.testing.assert_allclose(session.run(rows), rows @ weight, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("number_format", ["fp32", "int8"])
def test_time_gemms_times_products_in_every_number_format(number_format: str) -> None:
    shares: list[float] = []
    target = Target(TARGET.device, number_format)
    gemms = [Gemm(4, 4, 4), Gemm(256, 256, 256), Gemm(4, 4, 4)]
    small, large, again = time_gemms(gemms, target, shares.append)
    assert small.target == target.name
    assert 0 < 3 * small.latency_ms < large.latency_ms
    assert again.latency_ms < large.latency_ms
    assert shares[-1] == 1


def test_gemm_model_refuses_unusable_products_in_one_line() -> None:
    gemms = drawn(25, SEEN)
    with pytest.raises(ConfigError, match=r"got 5 products, .* at least 20 different"):
        GemmModel.fit(TARGET.name, gemms[:5], [1.0] * 5)
    with pytest.raises(ConfigError, match="25 of them different, and 24 costs"):
        GemmModel.fit(TARGET.name, gemms, [1.0] * 24)
    with pytest.raises(ConfigError, match="got 25 products, 1 of them different"):
        GemmModel.fit(TARGET.name, gemms[:1] * 25, [1.0] * 25)
    with pytest.raises(ConfigError, match="not positive numbers"):
        GemmModel.fit(TARGET.name, gemms, [1.0] * 24 + [0.0])
    with pytest.raises(ConfigError, match="at least 1 each"):
        Gemm(1, 0, 4)
    with pytest.raises(ConfigError, match="found 8 of 9 products"):
        sampled_gemms(9, np.random.default_rng(0), Gemm(1, 1, 1), Gemm(2, 2, 2))
    with pytest.raises(ConfigError, match="found 0 of 1 products") as refused:
        sampled_gemms(1, np.random.default_rng(0), Gemm(9, 9, 9), Gemm(2, 2, 2))
    assert "\n" not in str(refused.value)
