"""A bundle is timed again, and what it says of that."""

from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.deploy import Bundle, Target, TimingSettings, measure, write_bundle
from hwnas.deploy.measurement import Measurement
from hwnas.deploy.retiming import retime
from hwnas.errors import ConfigError

QUICK = TimingSettings(warmup=1, rounds=5, round_ms=1.0)


def test_now_and_then_are_compared(contents: dict[str, object], tmp_path: Path) -> None:
    target = Target.parse("cpu-onnxruntime-fp32-b1-t1")
    path = contents["onnx"]
    assert isinstance(path, Path)
    before = measure({"it": path}, target, QUICK)["it"]
    elsewhere = replace(before, target="phone-onnxruntime-fp32-b1-t1")
    bundle = write_bundle(tmp_path / "a", **{**contents, "measurements": [before, elsewhere]})
    here, there = retime(bundle, QUICK)
    assert here.name == "time of cpu-onnxruntime-fp32-b1-t1, model.onnx"
    assert f"{before.latency_ms:.4g} ms in the bundle" in here.detail
    assert "the reference model" in here.detail
    assert "not timed here" in there.detail
    assert "phone" in there.detail
    assert here.ok
    assert there.ok


def test_another_processor_is_told(packed: Bundle, measurement: Measurement) -> None:
    [check] = retime(packed, QUICK)
    assert f"measured on {measurement.hardware} then, on " in check.detail


def test_without_measurements_there_is_nothing_to_repeat(
    contents: dict[str, object], tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "a", **{**contents, "measurements": []})
    with pytest.raises(ConfigError, match="no measurements to repeat; time it with: hwnas measure"):
        retime(bundle)
