"""Kernel features: their values, the targets that have them, and their use on a simulated GPU."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from torch import nn

from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.matching import Graph, chosen_calls, matched
from hwnas.deploy.matching.kernel_cost import KernelSite, kernel_work
from hwnas.deploy.matching.network import ChosenCall, left_in_torch
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.predictors import (
    DevicePredictor,
    DeviceProfile,
    DeviceStore,
    Pool,
    predict,
    shipped_prior,
)
from hwnas.predictors.devices import device as device_module
from hwnas.predictors.features.blocks import blocks_of_steps
from hwnas.predictors.features.kernel_features import KERNELS, KernelFeatures, kernel_features
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import MobileNetSpace, OperatorCountTable, hybrid, mobilenet, resnet, vit
from hwnas.search_spaces.cost_model.workload import trace
from hwnas.search_spaces.layers import InvertedBottleneck

TRITON = "cuda-triton-fp16-b1-t1"
H200 = ACCELERATORS["nvidia-h200"]
OTHERS = ("cpu-onnxruntime-fp32-b1-t1", "cuda-tensorrt-fp16-b1-t1", "my-phone")


def features(target: str = TRITON) -> KernelFeatures:
    found = kernel_features(target)
    assert found is not None
    return found


def untouched(device: str = TRITON) -> DevicePredictor:
    return DevicePredictor(device, shipped_prior())


def table(space: MobileNetSpace, count: int, seed: int = 7) -> OperatorCountTable:
    rng = random.Random(seed)
    steps = space.steps(np.array([space.encode(space.sample(rng)) for _ in range(count)]))
    assert steps is not None
    return steps


def test_kernel_features_count_the_launches_of_the_matched_network(tmp_path: Path) -> None:
    """The batch is 8, so that hidden feature maps do not stay on the chip."""
    kinds = [(16, False), (32, False), (32, True), (48, True)]
    blocks = [InvertedBottleneck(16, hidden, 16, 3, 1, gate, "relu") for hidden, gate in kinds]
    network = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.ReLU(), *blocks).eval()
    export_onnx(network, (3, 56, 56), tmp_path / "model.onnx", traceable=True)
    graph = matched(OnnxModule.load(tmp_path / "model.onnx").eval(), 8, torch.float16)
    chosen = chosen_calls(graph, torch.float16)
    steps = OperatorCountTable.of_workloads([trace(network, (3, 56, 56))])
    names, [found] = features().names, features("cuda-triton-fp16-b8-t1").quantities(steps)
    values = dict(zip(names, found, strict=True))
    assert values["launches"] == sum(launches(graph, each) for each in chosen) > len(chosen)
    assert values["torch_launches"] == left_in_torch(graph).total() == 0


def launches(graph: Graph, chosen: ChosenCall) -> int:
    call, operator = chosen.call, chosen.call.operator
    own = call.type_in(torch.float16)
    values = {n: torch.empty(graph.shapes[n], dtype=own, device="meta") for n in call.inputs}
    weights = {n: w.to("meta", own) for n, w in call.weights.items()}
    inputs = operator.laid_out(operator.bound(**call.arguments(values), **weights))
    return len(operator.launches(inputs, operator.outputs(inputs), chosen.choice.config))


def test_kernel_features_exist_only_for_triton_targets(space: MobileNetSpace) -> None:
    steps = table(space, 4)
    for device in OTHERS:
        assert kernel_features(device) is None
        assert set(untouched(device).blocks(steps)) == {"physical"}
    assert set(untouched().blocks(steps)) == {"physical", KERNELS}
    assert KERNELS in untouched().parts(untouched().blocks(steps)).linear
    energy = DevicePredictor(TRITON, shipped_prior(), metric="energy_mj")
    assert set(energy.blocks(steps)) == {"physical"}


@pytest.mark.slow
@pytest.mark.parametrize("make", [mobilenet, vit, hybrid, resnet])
def test_kernel_features_are_equal_for_traced_and_encoded_networks(make: object) -> None:
    space = make((64, 64, 3), 10)  # type: ignore[operator]
    rng = random.Random(0)
    networks = [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(3))]
    traced = OperatorCountTable.of_workloads([space.workload(network) for network in networks])
    assembled = space.steps(np.array([space.encode(network) for network in networks]))
    seen = features().block(traced)
    assert np.isfinite(seen).all()
    assert (seen >= 0).all()
    assert np.ptp(seen, axis=0).max() > 0.5
    np.testing.assert_allclose(features().block(assembled), seen, rtol=1e-9)


def test_kernel_features_depend_on_batch_size_and_gpu(space: MobileNetSpace) -> None:
    steps = table(space, 3)
    rounds = features().names.index("rounds")
    batch = features("cuda-triton-fp16-b64-t1").quantities(steps)[:, rounds]
    assert (batch > features().quantities(steps)[:, rounds]).all()
    older = kernel_features(TRITON, "NVIDIA A100-SXM4-80GB")
    assert older is not None
    assert older.site.gpu == ACCELERATORS["nvidia-a100"]
    assert (older.quantities(steps)[:, rounds] > features().quantities(steps)[:, rounds]).any()


def test_prediction_notes_an_unknown_gpu(tmp_path: Path) -> None:
    steps = table(mobilenet((32, 32, 3), 10), 5)
    names = tuple(f"network{i}" for i in range(5))
    for hardware, notes in (("NVIDIA H200", 0), ("NVIDIA L4", 1)):
        costs = simulated_ms(steps)
        profile = DeviceProfile(TRITON, networks=names, steps=steps, costs=costs, hardware=hardware)
        DeviceStore(tmp_path).save(profile)
        [found] = predict(DeviceStore(tmp_path), [TRITON], steps.rows(np.arange(1)))
        told = [note for note in found.notes if note.startswith("the GPU is NVIDIA L4; ")]
        assert len(told) == notes


def pool_of(space: MobileNetSpace, count: int) -> Pool:
    steps = table(space, count)
    return Pool((), steps, blocks_of_steps(steps))


def simulated_ms(steps: OperatorCountTable) -> Numbers:
    """Simulate a GPU: each launch has a fixed overhead and then runs rounds of programs.

    The time of a round depends on the bytes and multiplications of its programs, so networks with
    equal totals differ by how the work is split into programs.
    """
    site = KernelSite(H200, torch.float16)
    works = [kernel_work(step, site) for step in steps.steps]
    each = [
        0.003 * work.launches
        + 1e-6 * max(work.busiest_bytes / 30, work.products / 1e3 / max(work.programs, 1))
        + 0.002 * work.rounds
        for work in works
    ]
    return steps.total(np.array(each))


def test_kernel_features_improve_the_ranking_on_a_simulated_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The simulated GPU uses the same quantities, so this is no evidence for a real GPU."""
    space = mobilenet((64, 64, 3), 10)
    pool, asked = pool_of(space, 60), table(space, 150)
    agreement = {}
    for seen in (True, False):
        if not seen:
            monkeypatch.setattr(device_module, "kernel_features", lambda device, hardware: None)
        rows = np.array(pool.most_informative(untouched(), 12))
        measured = pool.steps.rows(rows)
        noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(len(rows)))
        fitted = untouched().adapt_steps(measured, simulated_ms(measured) * noise)
        predicted = [estimate.mean for estimate in fitted.predict_steps(asked)]
        agreement[seen] = kendalltau(predicted, simulated_ms(asked)).statistic
    assert agreement[True] > agreement[False] + 0.03
    assert agreement[True] > 0.85


def test_saved_profile_holds_no_features_and_is_fitted_again(tmp_path: Path) -> None:
    """A loaded profile therefore always uses the features of the current version."""
    space = mobilenet((32, 32, 3), 10)
    steps, asked = table(space, 6), table(space, 3, seed=8)
    names = tuple(f"network{i}" for i in range(6))
    saved = DeviceProfile(
        TRITON, networks=names, steps=steps, costs=simulated_ms(steps), hardware="NVIDIA A100"
    )
    store = DeviceStore(tmp_path)
    store.save(saved)
    assert set(store.load(TRITON).description()) == set(DeviceProfile("x").description())
    fitted, loaded = DevicePredictor.of(saved), DevicePredictor.load(store, TRITON)
    assert loaded.hardware == "NVIDIA A100"
    assert [e.mean for e in loaded.predict_steps(asked)] == pytest.approx(
        [e.mean for e in fitted.predict_steps(asked)]
    )
    copy = pickle.loads(pickle.dumps(fitted))
    assert copy.predict_steps(asked) == fitted.predict_steps(asked)


def test_pool_chooses_networks_by_kernel_features() -> None:
    space = mobilenet((32, 32, 3), 10)
    pool = pool_of(space, 30)
    assert len(set(pool.most_informative(untouched(), 5))) == 5
    some = pool.steps.rows(np.arange(5))
    fitted = untouched().adapt_steps(some, simulated_ms(some))
    assert len(fitted.held_out()) == 5
