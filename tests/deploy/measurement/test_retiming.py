"""Repeated timing of a bundle, compared with its stored measurements."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    Target,
    TimingSettings,
    measure,
    write_bundle,
)
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.retiming import retime
from hwnas.errors import ConfigError

QUICK = TimingSettings(warmup=1, rounds=5, round_ms=1.0)


def test_retime_compares_new_and_stored_latencies(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path
) -> None:
    target = Target.parse("cpu-onnxruntime-fp32-b1-t1")
    before = measure({"it": to_pack.export.path}, target, QUICK)["it"]
    elsewhere = replace(before, target="phone-onnxruntime-fp32-b1-t1")
    known = replace(facts, measurements=[before, elsewhere])
    bundle = write_bundle(tmp_path / "a", to_pack, known)
    here, there = retime(bundle, QUICK)
    assert here.name == "time of cpu-onnxruntime-fp32-b1-t1, model.onnx"
    told = re.fullmatch(
        r"(\S+) ms now, (\S+) ms in the bundle, (\S+)%; the reference model, .*, [+-]\d+\.\d%",
        here.detail,
    )
    assert told, here.detail
    now_ms, before_ms, change = map(float, told.groups())
    assert before_ms == pytest.approx(before.latency_ms, rel=1e-3)
    assert change == pytest.approx(100 * (now_ms / before_ms - 1), abs=0.3)
    assert "not timed here" in there.detail
    assert "phone" in there.detail
    assert here.ok
    assert there.ok


def test_retime_compares_latencies_without_a_reference_model(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path
) -> None:
    target = Target.parse("cpu-onnxruntime-fp32-b1-t1")
    before = measure({"it": to_pack.export.path}, target, QUICK)["it"]
    known = replace(facts, measurements=[replace(before, anchor_ms=0.0)])
    [check] = retime(write_bundle(tmp_path / "a", to_pack, known), QUICK)
    assert check.detail.endswith("%")
    assert "reference model" not in check.detail


def test_retime_reports_another_processor(packed: Bundle, measurement: Measurement) -> None:
    [check] = retime(packed, QUICK)
    assert f"measured on {measurement.hardware} then, on " in check.detail


def test_retime_refuses_a_bundle_without_measurements(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "a", to_pack, replace(facts, measurements=[]))
    with pytest.raises(ConfigError, match="no measurements to repeat; time it with: hwnas measure"):
        retime(bundle)
