from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import hwnas as api
from hwnas.deploy import Device, Export, Target, export_onnx
from hwnas.deploy.measurement import memory
from hwnas.deploy.measurement.memory import PeakMemory, peak_memory
from hwnas.errors import ArtifactError, ConfigError, DeviceError

Command = Callable[..., Any]
TARGET = Target(Device("cpu", "onnxruntime"))
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="this system has no /proc/self/smaps_rollup",
)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with few weights and 17 MB of activations: 64 channels of 256 x 256 pixels."""
    path = tmp_path_factory.mktemp("wide") / "wide.onnx"
    layers = nn.Conv2d(1, 64, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    export_onnx(nn.Sequential(*layers), (1, 256, 256), path, traceable=True)
    return path


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with few activations and 20 MB of weights."""
    path = tmp_path_factory.mktemp("heavy") / "heavy.onnx"
    layers = nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16, 300_000)
    export_onnx(nn.Sequential(*layers), (1, 8, 8), path, traceable=True)
    return path


@pytest.fixture(scope="module")
def of_wide(wide: Path) -> PeakMemory:
    return peak_memory(wide, TARGET, 2)


@pytest.mark.slow
def test_peak_memory_counts_activations_without_the_runtime(of_wide: PeakMemory) -> None:
    activations = 4 * 64 * 256 * 256
    assert 0 < of_wide.loaded_bytes < 0.2 * activations
    assert activations < of_wide.peak_bytes < 6 * activations  # two copies in another layout


@pytest.mark.slow
def test_peak_memory_counts_weights_when_loaded(heavy: Path) -> None:
    weights = 4 * 17 * 300_000
    found = peak_memory(heavy, TARGET, 1)
    assert weights < found.loaded_bytes < 5 * weights
    assert found.loaded_bytes <= found.peak_bytes


@pytest.mark.slow
def test_peak_memory_grows_with_the_batch(wide: Path, of_wide: PeakMemory) -> None:
    four = Target(Device("cpu", "onnxruntime", batch=4))
    assert peak_memory(wide, four, 1).peak_bytes > 2 * of_wide.peak_bytes


@pytest.mark.slow
def test_peak_memory_agrees_between_processes(of_wide: PeakMemory) -> None:
    assert of_wide.target == TARGET.name
    assert of_wide.processes == 2
    assert of_wide.lowest_bytes <= of_wide.peak_bytes <= of_wide.highest_bytes
    assert of_wide.spread < 0.05


@pytest.mark.slow
def test_measure_command_prints_the_peak_memory(hwnas: Command, wide: Path) -> None:
    measure = ("measure", wide, "--target", TARGET.name, "--peak-memory")
    answer = hwnas(*measure)
    assert answer.status == 0, answer.err
    assert "in 3 processes" in answer.out
    assert json.loads(hwnas(*measure, "--json").out)["peak_bytes"] > 4 * 64 * 256 * 256
    found = api.measure_peak_memory(wide, TARGET, processes=1)
    assert found.processes == 1


def test_peak_memory_spread_is_relative_to_the_median() -> None:
    assert PeakMemory("t", 200, 100, 190, 210, 3).spread == pytest.approx(0.1)


def test_peak_memory_refuses_an_unusable_file_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ArtifactError, match=r"text\.onnx is not an ONNX file") as raised:
        peak_memory(tmp_path / "text.onnx", TARGET)
    assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(ArtifactError, match="there is no ONNX file"):
        peak_memory(tmp_path / "none.onnx", TARGET)


def test_peak_memory_refuses_invalid_settings_and_systems(
    exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="processes is 0; expected at least 1"):
        peak_memory(exported.path, TARGET, 0)
    with pytest.raises(DeviceError, match="has 4096 threads"):
        peak_memory(exported.path, Target(Device("cpu", "onnxruntime", threads=4096)))
    monkeypatch.setattr(memory, "_PROCESS", tmp_path)
    with pytest.raises(DeviceError, match=r"measure on Linux 4\.14 or later"):
        peak_memory(exported.path, TARGET)


def test_peak_memory_ends_a_process_after_its_timeout(exported: Export) -> None:
    with pytest.raises(DeviceError, match=r"within 0\.01 s; increase timeout_s"):
        peak_memory(exported.path, TARGET, timeout_s=0.01)
