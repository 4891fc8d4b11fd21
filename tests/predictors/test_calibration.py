from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import nn

from hwnas.deploy import Target, TimingSettings
from hwnas.deploy.measurement.energy import energy_of
from hwnas.errors import ConfigError, DeviceError, EnergyUnavailable
from hwnas.predictors import (
    CalibrationOptions,
    DevicePredictor,
    DeviceProfile,
    DeviceStore,
    NetworkMeasurement,
    calibrate,
    predict,
    shipped_prior,
)
from hwnas.predictors.devices import calibration
from hwnas.predictors.devices.calibration import Pool, export_chosen
from hwnas.search_spaces import MobileNetSpace, OperatorCountTable, mobilenet

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")
QUICK = TimingSettings(warmup=1, rounds=3, round_ms=1.0, max_seconds=0.2)
SPACE = mobilenet((8, 8, 1), 10)


@pytest.mark.slow
def test_calibrate_saves_measurements_and_continues_with_more_samples(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    readings: list[NetworkMeasurement] = []

    def options(samples: int) -> CalibrationOptions:
        return CalibrationOptions(samples, on_reading=readings.append)

    calibrate(TARGET, SPACE, store, options(3), settings=QUICK)
    assert [reading.number for reading in readings] == [1, 2, 3]
    assert all(reading.predicted is None for reading in readings)
    # The same call with more samples continues, and now has predictions.
    profile = calibrate(TARGET, SPACE, store, options(7), settings=QUICK)
    assert [reading.number for reading in readings[3:]] == [4, 5, 6, 7]
    assert len({reading.network for reading in readings}) == 7
    for reading in readings[3:]:
        assert reading.predicted is not None
        assert 0.1 < reading.predicted.mean / reading.measured < 10
        assert reading.error is not None
        assert reading.error > 0
    assert store.load(TARGET.name).costs.tolist() == profile.costs.tolist()
    assert [reading.measured for reading in readings] == profile.costs.tolist()
    assert profile.held_out_error is not None
    assert profile.clock == "cpu"
    assert profile.versions["onnxruntime"]
    assert calibrate(TARGET, SPACE, store, options(7)) is not None
    assert len(readings) == 7  # nothing more was measured


@pytest.mark.slow
def test_calibrate_keeps_measurements_from_before_the_device_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeviceStore(tmp_path)
    measured, calls = calibration.measure, []

    def lost(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise DeviceError("the device is gone")
        return measured(*arguments, **options)

    monkeypatch.setattr(calibration, "measure", lost)
    with pytest.raises(DeviceError, match="gone"):
        calibrate(TARGET, SPACE, store, CalibrationOptions(4, block=3), settings=QUICK)
    assert len(store.load(TARGET.name)) == 3
    assert len(calibrate(TARGET, SPACE, store, CalibrationOptions(4), settings=QUICK)) == 4


@pytest.mark.slow
def test_calibrate_measures_energy_if_a_counter_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter of constant five watts replaces the counter of the hardware."""
    three = CalibrationOptions(3)
    with pytest.raises(EnergyUnavailable, match="looked for readable RAPL counters"):
        calibrate(TARGET, SPACE, DeviceStore(tmp_path / "none"), three, metric="energy_mj")

    class FiveWatts:
        name, least_s = "five watts", 0.0

        def read_mj(self) -> float:
            return 5e3 * time.perf_counter()

    module = "hwnas.deploy.measurement.energy"
    monkeypatch.setattr(f"{module}.energy_counter", lambda hardware: FiveWatts())
    monkeypatch.setattr(
        f"{module}.energy_of", lambda run, counter, seconds: energy_of(run, counter, 0.02)
    )
    store = DeviceStore(tmp_path)
    profile = calibrate(TARGET, SPACE, store, three, metric="energy_mj")
    assert store.metrics(TARGET.name) == ["energy_mj"]
    assert profile.clock == "five watts"
    assert (profile.costs > 0).all()
    [found] = predict(store, [TARGET.name], profile.steps.rows(np.array([0])))[:1]
    assert found.estimate.metric == "energy_mj"


@pytest.mark.slow
def test_calibrate_stops_once_the_error_is_small_enough(tmp_path: Path) -> None:
    options = CalibrationOptions(40, until_error=5.0)
    profile = calibrate(TARGET, SPACE, DeviceStore(tmp_path), options, settings=QUICK)
    assert len(profile) == 5


def test_calibrate_refuses_times_of_an_emulated_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated = {"emulated_by": "qemu-aarch64"}
    monkeypatch.setattr("hwnas.deploy.measurement.timing.conditions", lambda: emulated)
    store = DeviceStore(tmp_path)
    with pytest.raises(DeviceError, match="emulated by qemu-aarch64, so its times say nothing"):
        calibrate(TARGET, SPACE, store, CalibrationOptions(3), settings=QUICK)
    assert not store.devices


def test_calibrate_refuses_to_mix_measurements_of_two_machines(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    steps = OperatorCountTable.of_workloads([SPACE.workload(SPACE.smallest())])
    known = {"networks": ("one",), "steps": steps, "costs": np.ones(1)}
    store.save(DeviceProfile(TARGET.name, **known, hardware="an abacus"))
    with pytest.raises(
        DeviceError, match=r"has measurements of cpu-.* on 'an abacus', but this machine is"
    ):
        calibrate(TARGET, SPACE, store, CalibrationOptions(4), settings=QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 2}, "samples is 2; expected at least 3"),
        ({"until_error": 0.0}, "until_error is 0; expected a fraction"),
    ],
)
def test_calibration_options_refuse_values_out_of_range(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CalibrationOptions(**options)


def test_pool_chooses_each_network_at_most_once(space: MobileNetSpace) -> None:
    pool = Pool.of(space, count=0)
    assert len(pool.networks) == 2
    untouched = DevicePredictor(TARGET.name, shipped_prior())
    assert sorted(pool.most_informative(untouched, 9)) == [0, 1]
    assert pool.most_informative(untouched, 9, [pool.networks[0].id]) == [1]


@pytest.mark.slow
def test_pool_chooses_networks_that_inform_more_than_random_ones(space: MobileNetSpace) -> None:
    pool = Pool.of(space)
    untouched = DevicePredictor(TARGET.name, shipped_prior())

    def unsure(rows: list[int]) -> float:
        some = [space.workload(pool.networks[i]) for i in rows]
        adapted = untouched.adapt(some, [1e-6 * workload.macs for workload in some])
        return float(np.mean(adapted.logs(pool.blocks)[1] ** 2))

    rng = np.random.default_rng(0)
    at_random = [unsure(rng.choice(len(pool.networks), 8, replace=False)) for _ in range(5)]
    assert unsure(pool.most_informative(untouched, 8)) < np.median(at_random)


@pytest.mark.slow
def test_export_chosen_writes_networks_and_a_table_to_fill_in(tmp_path: Path) -> None:
    table = export_chosen("phone", SPACE, DeviceStore(tmp_path / "store"), tmp_path / "out", 3)
    header, *lines = table.read_text().splitlines()
    assert header == "network,latency_ms"
    assert len(lines) == 3
    for line in lines:
        assert (tmp_path / "out" / line.rstrip(",")).is_file()


def test_exported_networks_share_no_constants_as_trained_ones(tmp_path: Path) -> None:
    network = SPACE.smallest()
    calibration.quickest_export(SPACE)(SPACE, network, tmp_path / "network.onnx")
    vectors = [
        onnx.numpy_helper.to_array(tensor).tobytes()
        for tensor in onnx.load(tmp_path / "network.onnx").graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 1
    ]
    layers = [m for m in SPACE.build(network).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(vectors) == len(set(vectors)) == len(layers)
