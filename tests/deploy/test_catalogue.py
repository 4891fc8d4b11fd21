import psutil
import pytest

from hwnas.deploy import Target, devices, machine, versions


def test_every_device_is_a_target_once_its_gaps_are_filled() -> None:
    found = devices()
    assert found
    for status in found:
        assert Target.parse(status.target.format(B=1, T=1)).device.hardware == "cpu"
        assert status.usable != bool(status.reason)
        assert {"processor", "cores", "instructions"} <= set(status.details)


def test_a_missing_runtime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwnas.deploy.runtimes.checks.find_spec", lambda name: None)
    reasons = {status.target.split("-")[1]: status.reason for status in devices()}
    assert "pip install onnxruntime" in reasons["onnxruntime"]
    assert "pip install 'hwnas[openvino]'" in reasons["openvino"]
    assert "pip install torch" in reasons["pytorch"]


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
