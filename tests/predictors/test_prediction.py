from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hwnas.deploy import export_onnx
from hwnas.deploy.onnx.workload import read_workload
from hwnas.deploy.targets.machine import machine
from hwnas.errors import ConfigError
from hwnas.predictors import DevicePredictor, DeviceStore, known_devices, predict
from hwnas.predictors.devices.shipped import shipped_profiles
from hwnas.predictors.explain import explain, profiled, unknown_share
from hwnas.search_spaces import MobileNetSpace, OperatorCountTable, mobilenet

TARGET = "cpu-onnxruntime-fp32-b1-t1"


@pytest.fixture(scope="module")
def zoo_like() -> MobileNetSpace:
    return mobilenet((64, 64, 3), 100)


@pytest.fixture(scope="module")
def model(zoo_like: MobileNetSpace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    network = zoo_like.smallest()
    export_onnx(zoo_like.build(network), zoo_like.input_shape(network), path, traceable=True)
    return path


def test_predict_knows_shipped_devices_without_measurements(tmp_path: Path, model: Path) -> None:
    [found] = predict(DeviceStore(tmp_path), [TARGET], read_workload(model))
    low, high = found.estimate.interval90
    assert 0 < low < found.estimate.mean < high
    assert found.samples == len(shipped_profiles()[TARGET])
    here = machine()["processor"]
    if shipped_profiles()[TARGET].hardware == here:
        assert found.notes == ()
    else:
        assert "`hwnas calibrate --target" in found.notes[0]


def test_predict_gives_onnx_file_and_architecture_the_same_cost(
    tmp_path: Path, zoo_like: MobileNetSpace, model: Path
) -> None:
    steps = OperatorCountTable.of_workloads([zoo_like.workload(zoo_like.smallest())])
    store = DeviceStore(tmp_path)
    [[one], [other]] = (predict(store, [TARGET], each) for each in (steps, read_workload(model)))
    assert one.estimate.mean == pytest.approx(other.estimate.mean, rel=0.01)


def test_predict_prefers_the_stored_profile_and_notes_another_machine(
    tmp_path: Path, model: Path
) -> None:
    store = DeviceStore(tmp_path)
    shipped = shipped_profiles()[TARGET]
    some = np.arange(0, len(shipped), 15)
    mine = replace(
        shipped,
        networks=tuple(shipped.networks[i] for i in some),
        steps=shipped.steps.rows(some),
        costs=3 * shipped.costs[some],
        hardware="an abacus",
    )
    [before] = predict(store, [TARGET], read_workload(model))
    store.save(mine)
    [after] = predict(store, [TARGET], read_workload(model))
    assert after.estimate.mean == pytest.approx(3 * before.estimate.mean, rel=0.25)
    assert "measured on an abacus, but this machine is" in after.notes[0]
    [listed] = [each for each in known_devices(store) if each.profile.device == TARGET]
    assert listed.origin == "store"


def test_predict_refuses_unknown_devices_and_names_the_command(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="hwnas calibrate --target cpu-onnxruntime-fp32-b2-t1"):
        predict(DeviceStore(tmp_path), ["cpu-onnxruntime-fp32-b2-t1"], read_workload(model))


def test_predict_notes_networks_outside_the_known_range(tmp_path: Path) -> None:
    huge = mobilenet((224, 224, 3), 1000)
    steps = OperatorCountTable.of_workloads([huge.workload(huge.largest())])
    [found] = predict(DeviceStore(tmp_path), [TARGET], steps)
    assert "outside the known range: " in found.notes[-1]
    assert "_macs is " in found.notes[-1]


def with_unknown_operator(model: Path, path: Path) -> Path:
    """Append an operator of an unknown domain to the network."""
    found = onnx.load(model)
    output = found.graph.output[0]
    node = helper.make_node("Mystery", [output.name], ["mystery"], "what", domain="elsewhere")
    found.graph.node.append(node)
    found.graph.output.append(helper.make_tensor_value_info("mystery", TensorProto.FLOAT, [1, 100]))
    found.opset_import.append(helper.make_opsetid("elsewhere", 1))
    onnx.save(found, path)
    return path


def test_predict_notes_unknown_operators(tmp_path: Path, model: Path) -> None:
    network = read_workload(with_unknown_operator(model, tmp_path / "mystery.onnx"))
    [found] = predict(DeviceStore(tmp_path), [TARGET], network)
    assert "unknown operators: Mystery (1); predicted from the bytes they move, " in found.notes[-1]
    assert 0 < unknown_share(DevicePredictor.load(tmp_path, TARGET), network) < 0.1


def test_explain_splits_the_prediction_over_operators(tmp_path: Path, model: Path) -> None:
    predictor, network = DevicePredictor.load(tmp_path, TARGET), read_workload(model)
    costs = explain(predictor, network)
    [estimate] = predictor.predict_steps(network.steps)
    assert sum(each.predicted for each in costs) == pytest.approx(estimate.mean)
    assert [each.predicted for each in costs] == sorted(
        (each.predicted for each in costs), reverse=True
    )
    assert {node for each in costs for node in each.nodes} == set(network.nodes)


def test_explain_lists_fused_operators_on_one_line(tmp_path: Path, model: Path) -> None:
    kernels, reason = profiled(model, TARGET)
    assert reason == ""
    assert kernels is not None
    predictor, network = DevicePredictor.load(tmp_path, TARGET), read_workload(model)
    costs = explain(predictor, network, kernels)
    assert sorted(n for each in costs for n in each.nodes) == sorted(network.nodes)
    assert any(len(each.nodes) > 1 for each in costs)
    # Most of the kernel time of the runtime is assigned to operators.
    beside = sum(each.profiled_ms or 0.0 for each in costs)
    assert 0.5 * sum(kernels.values()) < beside <= sum(kernels.values()) * (1 + 1e-9)


def test_explain_adds_up_the_kernels_of_one_operator(model: Path) -> None:
    """A quantised convolution has one more kernel, for its inputs."""
    network = read_workload(model)
    node = network.nodes[0]
    kernels = {f"{node}_token_1": 0.5, f"{node}_DequantizeLinear": 0.25, "Elsewhere_7": 1.0}
    costs = explain(DevicePredictor.load(Path("nowhere"), TARGET), network, kernels)
    assert [each.profiled_ms for each in costs if node in each.nodes] == [0.75]
    assert sum(each.profiled_ms or 0.0 for each in costs) == 0.75


def test_profiled_gives_the_reason_for_unsupported_targets(model: Path) -> None:
    assert profiled(model, "cpu-pytorch-fp32-b1-t1") == (
        None,
        "not profiled: cpu-pytorch-fp32-b1-t1 cannot be profiled; choose onnxruntime on cpu",
    )
    kernels, reason = profiled(model, "my-phone")
    assert kernels is None
    assert "not profiled: target 'my-phone'" in reason
