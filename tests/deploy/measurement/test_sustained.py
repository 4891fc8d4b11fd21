"""Latency under lasting load, and the time until a new process has its first answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hwnas as api
from hwnas.deploy import Export, Target
from hwnas.deploy.measurement.cold_start import StartMeasurement, StartTimes, cold_start
from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.deploy.measurement.sustained import SustainedLatency, TimedPart, measure_sustained
from hwnas.errors import ArtifactError, ConfigError, DeviceError
from hwnas.progress import SilentReporter

Command = Callable[..., Any]
TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")


def lasting(latencies_ms: list[float], like: Measurement) -> SustainedLatency:
    parts = [
        TimedPart(10.0 * i, replace(like, cpu_ms=Quantiles(ms, ms, ms, ms)))
        for i, ms in enumerate(latencies_ms)
    ]
    return SustainedLatency(tuple(parts))


@given(
    st.floats(0.1, 10), st.floats(0.5, 4), st.integers(1, 40), st.floats(1, 100), st.integers(0, 39)
)
def test_slowdown_compares_the_ends_and_ignores_one_disturbed_part(
    first_ms: float, slowdown: float, each: int, disturbed: float, where: int
) -> None:
    like = Measurement(
        TARGET.name, "cpu", Quantiles(1, 1, 1), Quantiles(1, 1, 1), 5, False, 1, "", {}, {}, ""
    )
    latencies = [first_ms] * each + [first_ms * slowdown] * each
    assert lasting(latencies, like).slowdown == pytest.approx(slowdown)
    if each >= 15:  # so that a tenth has three parts
        latencies[where % len(latencies)] *= disturbed
        assert lasting(latencies, like).slowdown == pytest.approx(slowdown)


def test_parts_follow_each_other_until_the_time_is_over(exported: Export) -> None:
    seconds = itertools.count(0.0, 0.5)
    shares: list[float] = []
    found = measure_sustained(
        exported.path, TARGET, 0.05, shares.append, clock=lambda: next(seconds)
    )
    begins = [each.begin_s for each in found.parts]
    assert begins == sorted(begins)
    assert len(begins) > 1
    assert shares == sorted(shares)
    assert shares[-1] > 0.8
    assert found.first_ms > 0


@pytest.mark.slow
def test_measure_command_shows_how_the_latency_changes(hwnas: Command, exported: Export) -> None:
    measure = ("measure", exported.path, "--target", TARGET.name)
    answer = hwnas(*measure, "--sustained", 0.02)
    assert answer.status == 0, answer.err
    assert "times as long (measured)" in answer.out
    found = json.loads(hwnas(*measure, "--sustained", 0.02, "--json").out)
    assert found["slowdown"] == pytest.approx(found["last_ms"] / found["first_ms"])
    assert found["parts"][0]["begin_s"] < 0.1


@pytest.mark.slow
def test_new_processes_take_longer_for_the_first_answer(hwnas: Command, exported: Export) -> None:
    found = api.measure_cold_start(exported.path, TARGET, starts=2)
    assert len(found.starts) == 2
    middle = found.median
    assert middle.until_answer_ms > middle.runtime_ms > middle.later_ms > 0
    answer = hwnas("measure", exported.path, "--target", TARGET.name, "--cold-start")
    assert "5 new processes" in answer.out
    assert "until the first answer" in answer.out


def test_median_start_is_that_of_each_part() -> None:
    found = StartMeasurement(
        "t", (StartTimes(1, 5, 3, 1), StartTimes(2, 4, 1, 1), StartTimes(9, 6, 2, 1))
    )
    assert found.median == StartTimes(2, 5, 2, 1)
    assert found.to_json()["until_answer_ms"] == 9


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sustained", "0"], "the time is 0 minutes; expected more than 0, and at most 1,440"),
        (["--sustained", "1e9"], "expected more than 0, and at most 1,440"),
        (["--sustained", "1", "--cold-start"], "give one of them"),
        (["--peak-memory", "--cold-start"], "give one of them"),
        (["--cold-start", "--patience", "3"], "--patience is for the latency alone"),
    ],
)
def test_measure_command_refuses_impossible_times(
    hwnas: Command, exported: Export, options: list[str], told: str
) -> None:
    hwnas("measure", exported.path, "--target", TARGET.name, *options).refused(told)


def test_cold_start_is_refused_elsewhere_and_for_damaged_files(
    exported: Export, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="starts is 0; expected at least 1"):
        cold_start(exported.path, TARGET, 0)
    with pytest.raises(ArtifactError, match="there is no ONNX file"):
        cold_start(tmp_path / "none.onnx", TARGET)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ArtifactError, match=r"text\.onnx is not an ONNX file"):
        api.measure_cold_start(tmp_path / "text.onnx", TARGET)
    with pytest.raises(DeviceError, match=r"within 0\.01 s; increase timeout_s"):
        cold_start(exported.path, TARGET, timeout_s=0.01)


def test_progress_is_reported_in_python(exported: Export) -> None:
    found = api.measure_sustained(exported.path, TARGET, 1e-6, reporter=SilentReporter())
    assert len(found.parts) == 1
