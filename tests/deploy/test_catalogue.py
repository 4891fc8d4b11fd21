import psutil
import pytest

from hwnas.deploy import Target, devices, machine, versions


def test_every_device_is_a_target_once_its_gaps_are_filled() -> None:
    found = devices()
    assert found
    for status in found:
        hardware = Target.parse(status.target.format(B=1, T=1)).device.hardware
        assert status.usable != bool(status.reason)
        assert status.details["processor"]
        assert ("instructions" in status.details) == (hardware == "cpu")


def test_a_missing_runtime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwnas.deploy.runtimes.checks.find_spec", lambda name: None)
    reasons = {status.target.split("-fp")[0]: status.reason for status in devices()}
    assert "pip install onnxruntime" in reasons["cpu-onnxruntime"]
    assert "pip install 'hwnas[openvino]'" in reasons["cpu-openvino"]
    assert "pip install torch" in reasons["cpu-pytorch"]
    assert "pip install 'hwnas[mnn]'" in reasons["cpu-mnn"]
    assert "'hwnas[executorch]' in a separate environment" in reasons["cpu-executorch"]
    assert "pip install onnxruntime-gpu" in reasons["cuda-tensorrt"]


def test_what_has_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reasons = {status.target.split("-fp")[0]: status.reason for status in devices()}
    for runtime in ("pytorch_compile", "aotinductor"):
        assert "no C++ compiler (no-such-compiler)" in reasons[f"cpu-{runtime}"]
    assert not reasons["cpu-pytorch"]


def test_the_machine_in_words() -> None:
    found = machine()
    assert {"processor", "cores", "memory", "system", "python"} <= set(found)
    assert all(isinstance(value, str) and value for value in found.values())
    assert f"{psutil.cpu_count()} logical" in found["cores"]


def test_versions() -> None:
    found = versions()
    assert {"hwnas", "torch", "numpy", "onnxruntime"} <= set(found)
    assert not {"pytest", "ruff"} & set(found)
    assert list(versions(["no-such-package", "numpy"])) == ["hwnas", "numpy"]
