"""History of usual latencies, with which slower measurements are recognised as contended."""

from pathlib import Path

import pytest

from hwnas.deploy import Export, Target, TimingSettings, measure
from hwnas.deploy.measurement.latency_history import LatencyHistory

ONE = Target.parse("cpu-onnxruntime-fp32-b1-t1")


def test_history_keeps_a_usual_latency_for_each_network(tmp_path: Path) -> None:
    times = LatencyHistory(tmp_path / "home" / "quick_times.json")
    assert times.usual_ms("one") is None
    times.remember({"one": 0.5, "other": 3.0})
    assert LatencyHistory(times.path).usual_ms("one") == 0.5
    assert times.usual_ms("other") == 3.0


def test_history_ignores_slow_sessions_and_one_fast_outlier(tmp_path: Path) -> None:
    times = LatencyHistory(tmp_path / "quick_times.json")
    for ms in (0.4, *[0.5] * 12, *[0.9] * 18):
        times.remember({"one": ms})
    assert times.usual_ms("one") == 0.5


def test_history_adapts_to_a_machine_that_became_slower(tmp_path: Path) -> None:
    times = LatencyHistory(tmp_path / "quick_times.json")
    for ms in (*[0.5] * 40, *[0.9] * 32):
        times.remember({"one": ms})
    assert times.usual_ms("one") == 0.9


@pytest.mark.parametrize("text", ["", "[]", "{", '{"quick_ms": {"one": ["x"]}}', "\xff"])
def test_history_replaces_a_damaged_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "quick_times.json"
    path.write_text(text, encoding="latin-1")
    assert LatencyHistory(path).usual_ms("one") is None
    LatencyHistory(path).remember({"one": 0.5})
    assert LatencyHistory(path).usual_ms("one") == 0.5


def test_history_ignores_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    LatencyHistory(tmp_path / "file" / "quick_times.json").remember({"one": 0.5})


def test_measure_marks_latencies_above_the_history_as_contended(
    exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path))
    settings = TimingSettings(warmup=1, rounds=5, round_ms=1.0, retries=0, patience_s=0.3)
    measure({"network": exported.path}, ONE, settings)
    kept = (tmp_path / "quick_times.json").read_text()
    assert ONE.name in kept
    key = next(iter(LatencyHistory()._read()))
    for _ in range(3):
        LatencyHistory().remember({key: 1e-6})
    found = measure({"network": exported.path}, ONE, settings)["network"]
    assert found.contended
