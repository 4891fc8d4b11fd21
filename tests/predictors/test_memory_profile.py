from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hwnas.deploy import Target, export_onnx
from hwnas.deploy.onnx.workload import read_workload
from hwnas.errors import ArtifactError, ConfigError, DeviceError
from hwnas.predictors import CalibrationOptions, DeviceStore, NetworkMeasurement
from hwnas.predictors.metrics.memory import memory_features
from hwnas.predictors.metrics.memory_profile import (
    MemoryProfile,
    calibrate_memory,
    load_memory,
    predict_memory,
)
from hwnas.search_spaces import mobilenet

TARGET = Target.parse("cpu-onnxruntime-fp32-b2-t1")
SPACE = mobilenet((32, 32, 3), 10)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DeviceStore:
    made = DeviceStore(tmp_path_factory.mktemp("store"))
    calibrate_memory(TARGET, SPACE, made, CalibrationOptions(3))
    return made


def test_memory_profile_survives_json_and_refuses_fields_that_do_not_fit() -> None:
    rows = ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    profile = MemoryProfile(TARGET.name, ("a", "b"), rows, (10, 20), "space", "hardware", {}, "now")
    written = json.loads(json.dumps(profile.to_json()))
    assert MemoryProfile.from_json(written) == profile
    with pytest.raises(ValueError, match="2 networks, 2 rows of features and 1 peaks"):
        MemoryProfile.from_json({**written, "peaks_bytes": [10]})


@pytest.mark.slow
def test_memory_profile_predicts_networks_that_were_not_measured(store: DeviceStore) -> None:
    profile = load_memory(store, TARGET.name)
    assert len(profile.networks) == len(profile.peaks_bytes) == 3
    small, large = (
        predict_memory(store, TARGET.name, lambda batch, n=network: SPACE.workload(n, batch))
        for network in (SPACE.smallest(), SPACE.largest())
    )
    assert 1e5 < small.estimate.mean < large.estimate.mean < 1e9
    assert small.estimate.metric == "peak_memory_bytes"
    assert small.samples == 3
    assert small.notes == ()


@pytest.mark.slow
def test_calibrate_memory_measures_nothing_twice(store: DeviceStore) -> None:
    measured: list[NetworkMeasurement] = []
    options = CalibrationOptions(3, on_reading=measured.append)
    known = calibrate_memory(TARGET, SPACE, store, options)
    assert measured == []
    assert known == load_memory(store, TARGET.name)


def test_memory_features_agree_for_onnx_file_and_architecture(tmp_path: Path) -> None:
    network = SPACE.smallest()
    path = tmp_path / "model.onnx"
    export_onnx(SPACE.build(network), SPACE.input_shape(network), path, traceable=True)
    workloads = [SPACE.workload(network, 2), read_workload(path, 2).workload]
    traced, read = memory_features(workloads)
    np.testing.assert_allclose(read, traced, atol=0.01)


@pytest.mark.slow
def test_memory_profile_refuses_wrong_options_machines_and_files(
    store: DeviceStore, tmp_path: Path
) -> None:
    empty = DeviceStore(tmp_path)
    advice = f"calibrate --target {TARGET.name} --metric peak_memory_bytes` measures some"
    with pytest.raises(ConfigError, match=advice):
        load_memory(empty, TARGET.name)
    with pytest.raises(ConfigError, match="the error of peak_memory_bytes is not known"):
        calibrate_memory(TARGET, SPACE, empty, CalibrationOptions(until_error=0.1))
    with pytest.raises(ConfigError, match="choose a target of onnxruntime"):
        calibrate_memory(Target.parse("cpu-pytorch-fp32-b1-t1"), SPACE, empty)
    found = json.loads((store.folder / TARGET.name / "peak_memory_bytes.json").read_text())
    path = tmp_path / TARGET.name / "peak_memory_bytes.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**found, "hardware": "an abacus"}))
    with pytest.raises(DeviceError, match="on 'an abacus', but this machine is"):
        calibrate_memory(TARGET, SPACE, empty, CalibrationOptions(5))
    path.write_text(json.dumps({**found, "peaks_bytes": [1]}))
    with pytest.raises(ArtifactError, match="3 networks, 3 rows of features and 1 peaks"):
        load_memory(empty, TARGET.name)
    path.write_text(json.dumps({**found, "schema": 2}))
    with pytest.raises(ArtifactError, match="update hwnas"):
        load_memory(empty, TARGET.name)
