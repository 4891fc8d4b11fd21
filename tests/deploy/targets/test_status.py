import pytest

from hwnas.deploy import Target, devices


def test_devices_give_valid_targets_with_batch_and_threads_filled_in() -> None:
    found = devices()
    assert found
    for status in found:
        hardware = Target.parse(status.target.format(B=1, T=1)).device.hardware
        assert status.usable != bool(status.reason)
        assert status.details["processor"]
        assert ("instructions" in status.details) == (hardware == "cpu")


def test_devices_say_what_to_install_for_a_missing_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwnas.deploy.runtimes.checks.find_spec", lambda name: None)
    reasons = {status.target.split("-fp")[0]: status.reason for status in devices()}
    assert "pip install onnxruntime" in reasons["cpu-onnxruntime"]
    assert "pip install 'hwnas[openvino]'" in reasons["cpu-openvino"]
    assert "pip install torch" in reasons["cpu-pytorch"]
    assert "pip install 'hwnas[mnn]'" in reasons["cpu-mnn"]
    assert "'hwnas[executorch]' in a separate environment" in reasons["cpu-executorch"]
    assert "pip install onnxruntime-gpu" in reasons["cuda-tensorrt"]


def test_devices_name_the_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reasons = {status.target.split("-fp")[0]: status.reason for status in devices()}
    for runtime in ("pytorch_compile", "aotinductor"):
        assert "no C++ compiler (no-such-compiler)" in reasons[f"cpu-{runtime}"]
    assert not reasons["cpu-pytorch"]
