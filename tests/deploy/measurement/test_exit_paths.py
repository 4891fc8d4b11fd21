"""Measured costs of networks with an early exit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.deploy import Measurement, Quantiles, Target, TimingSettings, measure
from hwnas.deploy.export.to_onnx import export_traced
from hwnas.deploy.measurement.exit_paths import exit_paths, mean_measurement
from hwnas.deploy.onnx.early_exit import early_exit_of
from hwnas.search_spaces import mobilenet
from hwnas.search_spaces.early_exit import EarlyExitSpace

TARGET = "cpu-onnxruntime-fp32-b1-t1"
SPACE = EarlyExitSpace(mobilenet((32, 32, 3), 10))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Export a network with random weights, 80% of whose images leave after its first stage."""
    values = SPACE.networks.largest().as_dict()
    after = next(iter(SPACE.places))
    network = SPACE.architecture({**values, "exit_share": 0.7, "exit_after": after})
    torch.manual_seed(0)
    module = SPACE.build(network).eval()
    assert module.head is not None
    module.head.share = 0.8
    module.head.fit(torch.rand(50))
    export_traced(module, SPACE.input_shape(network), tmp_path / "network.onnx")
    return tmp_path / "network.onnx"


def timed(ms: float) -> Measurement:
    found = Quantiles(ms, 2 * ms, 3 * ms, 4 * ms)
    about = {"hardware": "a CPU", "versions": {}, "settings": {"threads": "1"}, "time": "now"}
    return Measurement(TARGET, "cpu", found, found, 9, False, 1.0, **about)  # type: ignore[arg-type]


def test_measurement_of_both_paths_is_their_weighted_mean() -> None:
    early, whole = timed(1.0), replace(timed(3.0), n=7, contended=True)
    found = mean_measurement([(0.25, early), (0.75, whole)])
    assert found.cpu_ms == Quantiles(2.5, 5.0, 7.5, 10.0)
    assert found.latency_ms == 5.0
    assert (found.n, found.contended) == (7, True)
    assert found.settings == {
        "threads": "1",
        "early_exit_share": "0.25",
        "early_exit_ms": "2",
        "whole_network_ms": "6",
    }
    assert mean_measurement([(1.0, early)]) is early
    older = replace(early, cpu_ms=replace(early.cpu_ms, p95=None))
    assert mean_measurement([(0.5, older), (0.5, whole)]).cpu_ms.p95 is None
    assert Measurement.from_json(found.to_json()) == found


def test_paths_have_the_shares_of_batches_that_take_them(exported: Path) -> None:
    for batch, share in ((1, 0.8), (2, 0.64)):
        with exit_paths(exported, Target.parse(f"cpu-onnxruntime-fp32-b{batch}-t1")) as paths:
            assert [path.name for path in paths] == ["exit", "end"]
            assert [path.weight for path in paths] == pytest.approx([share, 1 - share])
            assert all(path.model.is_file() for path in paths)
            assert [early_exit_of(path.model) for path in paths] == [None, None]
    for other in ("cpu-openvino-fp32-b1-t1", "cpu-onnxruntime-int8-b1-t1"):
        with exit_paths(exported, Target.parse(other)) as paths:
            assert [path.model for path in paths] == [exported]


@pytest.mark.slow
def test_measured_latency_lies_between_those_of_both_paths(exported: Path) -> None:
    found = measure({"network": exported}, Target.parse(TARGET), TimingSettings(rounds=10))
    settings = found["network"].settings
    early, whole = (float(settings[name]) for name in ("early_exit_ms", "whole_network_ms"))
    assert settings["early_exit_share"] == "0.8"
    assert early < 0.7 * whole  # the exit stands after the first of several stages
    assert found["network"].latency_ms == pytest.approx(0.8 * early + 0.2 * whole, rel=1e-3)
