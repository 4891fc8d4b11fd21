from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwnas.deploy import Target
from hwnas.deploy.measurement.energy import RaplCounter
from hwnas.errors import ArtifactError, ConfigError
from hwnas.predictors import DeviceStore
from hwnas.predictors.metrics.gemm import Gemm
from hwnas.predictors.metrics.gemm_calibration import calibrate_gemms
from hwnas.predictors.metrics.gemm_profile import load_gemms, predict_gemm
from hwnas.predictors.metrics.gemm_tiles import GemmTile

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DeviceStore:
    made = DeviceStore(tmp_path_factory.mktemp("store"))
    calibrate_gemms(TARGET, made, 24)
    return made


@pytest.mark.slow
def test_calibrate_gemms_saves_products_that_predict_others(store: DeviceStore) -> None:
    profile = load_gemms(store, TARGET.name)
    assert len(profile.gemms) == len(profile.latencies_ms) == 24
    assert store.devices == []  # no network was measured
    small, large = (
        predict_gemm(store, TARGET.name, Gemm(size, size, size))[0] for size in (16, 512)
    )
    assert 0 < 10 * small.estimate.mean < large.estimate.mean
    assert small.samples == 24
    assert bool(profile.powers_w) == bool(RaplCounter.find())
    assert any("power is unknown" in note for note in small.notes) != bool(profile.powers_w)


def test_gemm_profile_notes_another_machine_and_refuses_damaged_files(
    store: DeviceStore, tmp_path: Path
) -> None:
    elsewhere = DeviceStore(tmp_path)
    found = json.loads((store.folder / TARGET.name / "gemm.json").read_text())
    path = tmp_path / TARGET.name / "gemm.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**found, "hardware": "an abacus"}))
    [first, *_] = predict_gemm(elsewhere, TARGET.name, Gemm(8, 8, 8))
    assert "measured on an abacus" in first.notes[0]
    path.write_text(json.dumps({**found, "schema": 2}))
    with pytest.raises(ArtifactError, match="update hwnas"):
        load_gemms(elsewhere, TARGET.name)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="damaged"):
        load_gemms(elsewhere, TARGET.name)


def test_gemm_profile_names_the_command_if_nothing_was_timed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"calibrate --target {TARGET.name} --gemm"):
        load_gemms(DeviceStore(tmp_path), TARGET.name)
    with pytest.raises(ConfigError, match="3 products are too few"):
        calibrate_gemms(TARGET, DeviceStore(tmp_path), 3)


def test_gemm_profile_of_an_earlier_version_is_read_without_powers_and_tiles(
    store: DeviceStore, tmp_path: Path
) -> None:
    found = json.loads((store.folder / TARGET.name / "gemm.json").read_text())
    for name in ("powers_w", "counter", "tiles", "site"):
        found.pop(name, None)
    path = tmp_path / TARGET.name / "gemm.json"
    path.parent.mkdir()
    path.write_text(json.dumps(found))
    [latency] = predict_gemm(DeviceStore(tmp_path), TARGET.name, Gemm(64, 64, 64))
    assert any("power is unknown" in note for note in latency.notes)
    with pytest.raises(ConfigError, match="chooses its tiles itself; leave --tile out"):
        predict_gemm(DeviceStore(tmp_path), TARGET.name, Gemm(8, 8, 8), GemmTile(16, 16, 16, 1, 1))
