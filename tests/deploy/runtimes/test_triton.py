"""Runtime of the Triton kernels of hwnas, tested without a GPU."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from hwnas.deploy import RUNTIMES, Export, Target
from hwnas.deploy.matching.kernel_plan import KernelPlan, plan_file
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.runtimes.triton import Triton, TritonSession, matched_network
from hwnas.deploy.targets.number_format import to_float16
from hwnas.errors import ArtifactError, DeviceError

TARGET = Target.parse("cuda-triton-fp32-b2-t1")
CPU = torch.device("cpu")


@pytest.fixture
def prepared(exported: Export, tmp_path: Path) -> Path:
    return Triton().prepare(exported.path, TARGET, tmp_path)


def session(model: Path, target: Target = TARGET) -> TritonSession:
    """Return a session like that of `load`, but on the CPU and without a CUDA graph."""
    network, note = matched_network(model, target, CPU)
    return TritonSession(
        model, lambda x: network(torch.from_numpy(x)).numpy(), target, network, note
    )


def test_triton_runtime_reports_a_missing_gpu(exported: Export) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "PyTorch finds no GPU" in str(RUNTIMES["triton"].unavailable("cuda"))
    with pytest.raises(DeviceError, match="triton cannot be used: PyTorch finds no GPU"):
        open_session(exported.path, TARGET)


@pytest.mark.slow
def test_triton_session_gives_the_outputs_of_the_network(prepared: Path, exported: Export) -> None:
    images = np.random.default_rng(1).standard_normal((5, 1, 8, 8), dtype=np.float32)
    expected = open_session(exported.path, Target.parse("cpu-onnxruntime-fp32-b5-t1")).run(images)
    np.testing.assert_allclose(session(prepared).run(images), expected, atol=1e-5)


def test_triton_session_reports_kernels_and_operators_in_pytorch(prepared: Path) -> None:
    settings = session(prepared).settings
    assert "pointwise" in settings["kernels"]
    assert settings["in PyTorch"] == "nothing"
    assert "note" not in settings


def test_triton_runtime_keeps_the_plan_beside_a_file(prepared: Path, tmp_path: Path) -> None:
    plan = plan_file(prepared, TARGET)
    plan.write_text(re.sub(r'"note": "[^"]*"', '"note": "measured"', plan.read_text()))
    folder = tmp_path / "again"
    folder.mkdir()
    again = Triton().prepare(prepared, TARGET, folder)
    assert '"note": "measured"' in plan_file(again, TARGET).read_text()
    chosen = session(again).network.chosen
    assert {each.choice.note for each in chosen} == {"measured"}


def test_triton_session_ignores_a_plan_of_another_gpu_with_a_note(prepared: Path) -> None:
    path = plan_file(prepared, TARGET)
    KernelPlan.read(path)
    path.write_text(path.read_text().replace('"gpu": "', '"gpu": "other '))
    with pytest.warns(RuntimeWarning, match="GPU other .*; default configurations are used"):
        told = session(prepared).settings["note"]
    assert "default configurations are used" in told


@pytest.mark.slow
def test_triton_runtime_accepts_half_precision_files_for_fp16_only(
    exported: Export, tmp_path: Path
) -> None:
    half = to_float16(exported.path, tmp_path / "half.onnx")
    target = Target.parse("cuda-triton-fp16-b2-t1")
    images = np.random.default_rng(1).standard_normal((2, 1, 8, 8), dtype=np.float32)
    expected = open_session(exported.path, Target.parse("cpu-onnxruntime-fp32-b2-t1")).run(images)
    found = session(Triton().prepare(half, target, tmp_path), target).run(images)
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
    with pytest.raises(ArtifactError, match=r"half\.onnx computes in fp16 and the target in bf16"):
        Triton().prepare(half, Target.parse("cuda-triton-bf16-b2-t1"), tmp_path)


@pytest.mark.slow
def test_triton_runtime_quantises_a_float_file_for_int8(exported: Export, tmp_path: Path) -> None:
    target = Target.parse("cuda-triton-int8-b2-t1")
    made = Triton().prepare(exported.path, target, tmp_path)
    images = np.random.default_rng(1).standard_normal((2, 1, 8, 8), dtype=np.float32)
    expected = open_session(made, Target.parse("cpu-onnxruntime-int8-b2-t1")).run(images)
    found = session(made, target)
    off = np.abs(found.run(images) - expected).max()
    assert off <= np.ptp(expected) / 64  # 4 of 256 steps: floating-point parts round differently
    assert "int8_pointwise" in found.settings["kernels"]
    assert plan_file(made, target).is_file()
    with pytest.raises(ArtifactError, match="computes in int8 and the target in fp16"):
        Triton().prepare(made, Target.parse("cuda-triton-fp16-b2-t1"), tmp_path)
