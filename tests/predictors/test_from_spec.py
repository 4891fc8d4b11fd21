from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwnas.predictors.devices.from_spec import predict_from_spec
from hwnas.predictors.devices.published import published_devices
from hwnas.predictors.devices.shipped import shipped_profiles
from hwnas.predictors.devices.spec_sheet import SpecSheet, save_spec
from hwnas.predictors.devices.store import DeviceProfile, DeviceStore
from hwnas.search_spaces import OperatorCountTable, mobilenet, vit

BOARD = SpecSheet("board", "mobile", 4, 1.8, 12.8, 1.0, vector_bits=128)
TARGET = "cpu-onnxruntime-fp32-b1-t1"


@pytest.fixture(scope="module")
def network() -> OperatorCountTable:
    space = mobilenet((64, 64, 3), 100)
    return OperatorCountTable.of_workloads([space.workload(space.smallest())])


def measured(device: str) -> DeviceProfile:
    """Ten networks of a shipped device, as if they had been measured on another one."""
    shipped, some = shipped_profiles()[TARGET], np.arange(0, 200, 20)
    networks = tuple(shipped.networks[i] for i in some)
    costs, steps = shipped.costs[some], shipped.steps.rows(some)
    return replace(shipped, device=device, networks=networks, steps=steps, costs=costs)


def test_spec_prediction_is_wide_and_names_its_sources(
    tmp_path: Path, network: OperatorCountTable
) -> None:
    found = predict_from_spec(BOARD, network, DeviceStore(tmp_path))
    low, high = found.estimate.interval90
    assert (found.estimate.target, found.estimate.kind, found.samples) == ("board", "predicted", 0)
    assert 2 < found.estimate.mean / low < 5
    assert high / found.estimate.mean == pytest.approx(found.estimate.mean / low)
    assert found.notes[0].startswith("from the spec sheet alone, no measurement")
    assert "raspi4" in found.notes[0]
    assert "learnt from 17 devices of the tables of HELP" in found.notes[1]
    assert found.notes[1].endswith("none of yours")


@pytest.mark.parametrize("device", ["1080ti", "gold_6240", "pixel3"])
def test_spec_prediction_of_a_published_device_is_its_own_model(
    tmp_path: Path, network: OperatorCountTable, device: str
) -> None:
    [known] = [each for each in published_devices().devices if each.spec.name == device]
    found = predict_from_spec(known.spec, network, DeviceStore(tmp_path))
    assert found.estimate.mean == pytest.approx(float(np.exp(known.cost.logs(network)[0])))


def test_spec_prediction_learns_from_calibrated_devices_with_a_spec_sheet(
    tmp_path: Path, network: OperatorCountTable
) -> None:
    store = DeviceStore(tmp_path)
    before = predict_from_spec(BOARD, network, store).estimate.mean
    for name in ("mine", TARGET.replace("b1", "b8"), TARGET.replace("fp32", "int8")):
        store.save(measured(name))
    without = predict_from_spec(BOARD, network, store)
    assert without.estimate.mean == before
    # Only single images in float32 count.
    assert (
        "mine would help, too, with a spec sheet: `hwnas calibrate --target mine"
        in (without.notes[1])
    )
    save_spec(store, "mine", replace(BOARD, name="mine"))
    found = predict_from_spec(BOARD, network, store)
    assert "and 1 that you calibrated (mine)" in found.notes[1]
    assert "(mine, " in found.notes[0]
    assert found.estimate.mean < 0.5 * before  # as fast as the machine that ships, not as a phone


def test_spec_prediction_warns_where_nothing_is_alike(
    tmp_path: Path, network: OperatorCountTable
) -> None:
    store = DeviceStore(tmp_path)
    usual = predict_from_spec(BOARD, network, store).estimate
    odd = SpecSheet("npu", "accelerator", 4096, 1.0, 100, 900, peak_gflops=8000)
    found = predict_from_spec(odd, network, store)
    assert found.notes[-1].startswith("little more than a guess: of the known devices only fpga")
    assert "cache_mb is 900 (known devices: 1 to 24.75)" in found.notes[-1]
    wider = found.estimate.interval90[1] / found.estimate.mean
    assert wider > 1.2 * usual.interval90[1] / usual.mean


def test_spec_prediction_warns_of_networks_unlike_those_of_the_tables(tmp_path: Path) -> None:
    space = vit((64, 64, 3), 100)
    steps = OperatorCountTable.of_workloads([space.workload(space.smallest())])
    found = predict_from_spec(BOARD, steps, DeviceStore(tmp_path))
    assert "little more than a guess: matrix_macs is " in found.notes[-1]
