"""Matrix products in given tiles: time and power, on a simulated GPU."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy import Target
from hwnas.errors import ArtifactError, ConfigError, DeviceError
from hwnas.predictors import DeviceStore
from hwnas.predictors.metrics.gemm import Gemm, sampled_gemms
from hwnas.predictors.metrics.gemm_bench import TileReading
from hwnas.predictors.metrics.gemm_calibration import calibrate_gemms, time_tiles
from hwnas.predictors.metrics.gemm_profile import load_gemms, predict_gemm, save_gemms
from hwnas.predictors.metrics.gemm_tiles import (
    GemmTile,
    TiledGemm,
    TileSite,
    allowed_tiles,
    sampled_tiles,
)

TARGET = Target.parse("cuda-triton-fp16-b1-t1")
SITE = TileSite(132, 227 * 1024, 255, 2)
POWERS = st.sampled_from([16, 32, 64, 128])
TILES = st.builds(
    GemmTile, POWERS, POWERS, POWERS, st.sampled_from([1, 2, 4, 8]), st.integers(1, 5)
)


@dataclass(frozen=True)
class SimulatedGpu:
    """GPU that waits for memory with few stages, and needs warps to be fast."""

    site: TileSite = SITE
    counter: str = "simulated counter"
    broken: bool = False

    def measure(self, product: TiledGemm) -> TileReading | None:
        if self.broken:
            return None
        (m, n, k), tile = product.sizes, product.tile
        rounds = math.ceil(math.ceil(m / tile.m) * math.ceil(n / tile.n) / 132)
        steps = rounds * math.ceil(k / tile.k)
        computing = steps * tile.m * tile.n * tile.k / (150e6 * min(1, 0.3 + tile.warps / 8))
        moving = steps * 2 * (tile.m + tile.n) * tile.k / 12e6
        waiting = steps * 3e-4 / tile.stages
        latency_ms = 2e-3 + max(computing, moving) + waiting
        busy = (computing + moving) / latency_ms
        noise = np.random.default_rng(abs(hash(product))).normal(0, 0.01)
        power_w = 100 + 250 * busy if self.counter else None
        return TileReading(latency_ms * math.exp(noise), power_w)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DeviceStore:
    made = DeviceStore(tmp_path_factory.mktemp("store"))
    save_gemms(made, time_tiles(TARGET, SimulatedGpu(), 60))
    return made


@given(TILES)
def test_tile_survives_text_and_configuration(tile: GemmTile) -> None:
    assert GemmTile.parse(str(tile)) == tile
    assert GemmTile.of(tile.config) == tile


@given(TILES, st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_work_of_a_tile_grows_with_the_product(tile: GemmTile, m: int, n: int, k: int) -> None:
    small = TiledGemm(Gemm(m, n, k), tile, SITE).work
    large = TiledGemm(Gemm(2 * m, 2 * n, 2 * k), tile, SITE).work
    assert all(0 <= one <= other for one, other in zip(small, large, strict=True))


def test_work_of_a_tile_equals_a_calculation_by_hand() -> None:
    """There are 2 x 4 programs of 4 steps on 4 multiprocessors: two rounds."""
    site = TileSite(4, 2**16, 255, 2)
    work = TiledGemm(Gemm(100, 200, 100), GemmTile(64, 64, 32, 4, 2), site).work
    call, moved, steps, loaded, products, stored, *_ = work
    assert (call, moved) == (1, 2 * (100 * 100 + 100 * 200 + 100 * 200))
    assert steps == 2 * 4
    assert loaded == steps * (64 + 64) * 32 * 2
    assert products == steps * 64 * 64 * 32
    assert stored == 2 * 64 * 64


def test_allowed_tiles_fit_the_gpu_and_products_of_a_batch() -> None:
    gemm = Gemm(40, 64, 64)
    tiles = allowed_tiles(gemm, SITE)
    assert all((t.m + t.n) * t.k * 2 * t.stages <= SITE.shared_bytes for t in tiles)
    assert {t.m for t in tiles} == {16, 32, 64}
    batch = TileSite(132, 227 * 1024, 255, 2, batch=4)
    assert max(t.m for t in allowed_tiles(gemm, batch)) == 128
    assert (
        TiledGemm(gemm, tiles[0], batch).work
        == TiledGemm(Gemm(160, 64, 64), tiles[0], SITE).work[:1]
        + TiledGemm(gemm, tiles[0], batch).work[1:2]
        + (TiledGemm(Gemm(160, 64, 64), tiles[0], SITE).work[2:])
    )


def test_sampled_tiles_are_allowed_and_repeat_few_different_ones() -> None:
    gemms = sampled_gemms(30, np.random.default_rng(0))
    drawn = sampled_tiles(gemms, SITE, 6, np.random.default_rng(1))
    assert drawn == sampled_tiles(gemms, SITE, 6, np.random.default_rng(1))
    assert len(set(drawn)) == len(drawn) > 150
    assert all(each.tile in allowed_tiles(each.gemm, SITE) for each in drawn[:60])
    assert len({each.tile for each in drawn}) < 110


@pytest.mark.slow
def test_predict_gemm_chooses_a_fast_tile_of_a_new_product(store: DeviceStore) -> None:
    gpu, losses = SimulatedGpu(), []
    for gemm in sampled_gemms(4, np.random.default_rng(5), Gemm(16, 16, 16)):
        latency, power = predict_gemm(store, TARGET.name, gemm)
        tile = GemmTile.parse(latency.notes[-1].split()[1])
        chosen = gpu.measure(TiledGemm(gemm, tile, SITE))
        best = min(
            gpu.measure(TiledGemm(gemm, t, SITE)).latency_ms for t in allowed_tiles(gemm, SITE)
        )
        losses.append(chosen.latency_ms / best - 1)
        assert latency.estimate.mean == pytest.approx(chosen.latency_ms, rel=0.5)
        assert power.estimate.mean == pytest.approx(chosen.power_w, rel=0.3)
        assert (latency.estimate.metric, power.estimate.metric) == ("latency_ms", "power_w")
    assert np.mean(losses) < 0.1


@pytest.mark.slow
def test_predict_gemm_depends_on_the_given_tile(store: DeviceStore) -> None:
    gemm, gpu = Gemm(1024, 1024, 1024), SimulatedGpu()
    for tile in (GemmTile(16, 16, 16, 1, 1), GemmTile(128, 128, 64, 8, 3)):
        latency, power = predict_gemm(store, TARGET.name, gemm, tile)
        true = gpu.measure(TiledGemm(gemm, tile, SITE))
        assert latency.estimate.mean == pytest.approx(true.latency_ms, rel=0.3)
        assert power.estimate.mean == pytest.approx(true.power_w, rel=0.3)
        assert not any("tile" in note for note in latency.notes)


@pytest.mark.slow
def test_predict_gemm_says_that_power_is_unknown_without_a_counter(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    save_gemms(store, time_tiles(TARGET, SimulatedGpu(counter=""), 24))
    [latency] = predict_gemm(store, TARGET.name, Gemm(64, 64, 64))
    assert latency.estimate.metric == "latency_ms"
    assert any(note.startswith("power is unknown: no energy counter") for note in latency.notes)


def test_time_tiles_refuses_a_gpu_that_computes_nothing() -> None:
    with pytest.raises(DeviceError, match=r"only 0 of \d+ products could be computed"):
        time_tiles(TARGET, SimulatedGpu(broken=True), 20)


def test_gemm_profile_survives_its_file_and_refuses_lengths_that_differ(
    store: DeviceStore, tmp_path: Path
) -> None:
    profile = load_gemms(store, TARGET.name)
    other = DeviceStore(tmp_path)
    save_gemms(other, profile)
    assert load_gemms(other, TARGET.name) == profile
    path = tmp_path / TARGET.name / "gemm.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "tiles": found["tiles"][1:]}))
    with pytest.raises(ArtifactError, match=r"damaged \(\d+ tiles for \d+ products; expected as"):
        load_gemms(other, TARGET.name)


@pytest.mark.parametrize("text", ["64x64x32", "64x64x32x4x0", "60x64x32x4x2", "axbxcxdxe", ""])
def test_tile_refuses_other_texts_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="MxNxKxWARPSxSTAGES") as refused:
        GemmTile.parse(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tile", "reason"),
    [("8x64x32x4x2", "has a side below 16"), ("128x128x128x4x9", "needs 589,824 bytes of shared")],
)
def test_predict_gemm_refuses_tiles_that_the_gpu_lacks(
    tile: str, reason: str, store: DeviceStore
) -> None:
    with pytest.raises(ConfigError, match=reason):
        predict_gemm(store, TARGET.name, Gemm(64, 64, 64), GemmTile.parse(tile))


def test_calibrate_gemms_refuses_triton_without_a_gpu(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="triton cannot be used"):
        calibrate_gemms(TARGET, DeviceStore(tmp_path))


def test_tile_site_refuses_integers() -> None:
    from hwnas.kernels.accelerator import ACCELERATORS

    gpu = ACCELERATORS["nvidia-h200"]
    assert TileSite.of(gpu, TARGET) == TileSite(132, 227 * 1024, 255, 2)
    with pytest.raises(ConfigError, match="not in int8"):
        TileSite.of(gpu, Target.parse("cuda-triton-int8-b1-t1"))
