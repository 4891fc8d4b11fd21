"""What is remembered of networks, and that they have to be as quick again."""

from pathlib import Path

import pytest

from hwnas.deploy import Export, Target, TimingSettings, measure
from hwnas.deploy.latency_history import LatencyHistory

ONE = Target.parse("cpu-onnxruntime-fp32-b1-t1")


def test_sessions_are_remembered_for_each_network(tmp_path: Path) -> None:
    times = LatencyHistory(tmp_path / "home" / "quick_times.json")
    assert times.usual_ms("one") is None
    times.remember({"one": 0.5, "other": 3.0})
    assert LatencyHistory(times.path).usual_ms("one") == 0.5
    assert times.usual_ms("other") == 3.0


def test_slow_sessions_and_one_lucky_one_change_nothing(tmp_path: Path) -> None:
    times = LatencyHistory(tmp_path / "quick_times.json")
    for ms in (0.4, *[0.5] * 12, *[0.9] * 18):
        times.remember({"one": ms})
    assert times.usual_ms("one") == 0.5


def test_a_machine_that_has_changed_is_learnt_anew(tmp_path: Path) -> None:
    times = LatencyHistory(tmp_path / "quick_times.json")
    for ms in (*[0.5] * 40, *[0.9] * 32):
        times.remember({"one": ms})
    assert times.usual_ms("one") == 0.9


@pytest.mark.parametrize("text", ["", "[]", "{", '{"quick_ms": {"one": ["x"]}}', "\xff"])
def test_a_damaged_file_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "quick_times.json"
    path.write_text(text, encoding="latin-1")
    assert LatencyHistory(path).usual_ms("one") is None
    LatencyHistory(path).remember({"one": 0.5})
    assert LatencyHistory(path).usual_ms("one") == 0.5


def test_a_place_that_cannot_be_written_stops_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    LatencyHistory(tmp_path / "file" / "quick_times.json").remember({"one": 0.5})


def test_a_machine_slower_than_it_was_is_waited_for_and_told(
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
