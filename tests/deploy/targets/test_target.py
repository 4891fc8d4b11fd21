import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy import RUNTIMES, Device, Target
from hwnas.deploy.targets.target import HARDWARE
from hwnas.errors import ConfigError


@given(batch=st.integers(1, 999_999), threads=st.integers(1, 999_999))
def test_target_name_round_trips(batch: int, threads: int) -> None:
    target = Target(Device("cpu", "onnxruntime", batch, threads))
    assert Target.parse(target.name) == target


def test_target_and_device_names_contain_batch_and_threads() -> None:
    target = Target.parse("cpu-onnxruntime-fp32-b8-t2")
    assert target.name == "cpu-onnxruntime-fp32-b8-t2"
    assert target.device.name == "cpu-onnxruntime-b8-t2"
    assert (target.device.batch, target.device.threads, target.format) == (8, 2, "fp32")


@given(text=st.text(max_size=40).filter(lambda text: not text.startswith("cpu-onnxruntime-fp32")))
def test_target_refuses_any_other_text_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Target.parse(text)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "wrong", "closest"),
    [
        ("gpu-onnxruntime-fp32-b1-t1", "hardware 'gpu'", "cpu-onnxruntime-fp32-b1-t1"),
        ("cuda-openvino-fp32-b1-t1", "openvino runs on cpu", "cpu-openvino-fp32-b1-t1"),
        ("cpu-tensorrt-fp16-b1-t1", "tensorrt runs on cuda", "cuda-tensorrt-fp16-b1-t1"),
        ("cpu-onnxruntme-fp32-b4-t1", "did you mean 'onnxruntime'", "cpu-onnxruntime-fp32-b4-t1"),
        ("cpu-onnxruntime-int4-b1-t2", "format 'int4'", "cpu-onnxruntime-int8-b1-t2"),
        ("cpu-onnxruntime-fp32-b0-t1", "batch is 0", "cpu-onnxruntime-fp32-b1-t1"),
        ("cpu-onnxruntime-b2-t1", "hardware-runtime-format", "cpu-onnxruntime-fp32-b2-t1"),
        ("cpu", "hardware-runtime-format", "cpu-onnxruntime-fp32-b1-t1"),
    ],
)
def test_target_names_the_wrong_part_and_the_closest_target(
    text: str, wrong: str, closest: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        Target.parse(text)
    assert repr(text) in str(raised.value)
    assert wrong in str(raised.value)
    assert repr(closest) in str(raised.value)


def test_runtimes_use_the_hardware_of_this_machine() -> None:
    assert all(runtime.formats for runtime in RUNTIMES.values())
    places = {hardware for runtime in RUNTIMES.values() for hardware in runtime.hardware}
    assert places == set(HARDWARE)


def test_device_here_selects_the_hardware_of_the_runtime() -> None:
    assert Device.here("onnxruntime", 8, 2).name == "cpu-onnxruntime-b8-t2"
    assert Device.here("tensorrt").hardware == "cuda"
    with pytest.raises(ConfigError, match="unknown runtime 'nonesuch'; known: "):
        Device.here("nonesuch")
