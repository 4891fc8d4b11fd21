import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hwnas.cli.terminal import count_text, metric_text, print_measurement, print_summary, size_text
from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.search.objectives.objective import Objective
from hwnas.stages.finalists.limits import LimitCheck
from hwnas.stages.results.run_result import FrontRow, RunResult

TARGET = "cpu-onnxruntime-fp32-b1-t1"
ROW = FrontRow(
    id="0123456789ab",
    picks=("knee", "fastest"),
    values={"accuracy": 0.9812, f"latency_ms@{TARGET}": 1.234},
    standard_errors={"accuracy": 0.005},
    test=0.975,
    predicted_latency_ms=1.234,
    measured_latency_ms=1.31,
    predicted_ms={},
    measured_ms={},
    macs=6_240_000,
    params=207_000,
    weight_bytes=849_000,
    bundle="bundles/0123456789ab",
    architecture={"width": 1.0},
    intervals={"accuracy": (0.9688, 0.9887)},
)
OTHER = replace(ROW, id="ba9876543210", picks=(), test=None, measured_latency_ms=None, bundle=None)


def shown(summary: RunResult, width: int = 150) -> str:
    told = io.StringIO()
    print_summary(Console(file=told, width=width, highlight=False), summary)
    return told.getvalue()


@pytest.fixture
def summary() -> RunResult:
    objectives = (
        Objective("accuracy", "maximize"),
        Objective("latency_ms", "minimize", TARGET),
    )
    run = Path("runs/[odd]")
    return RunResult(run, run, "accuracy", objectives, 12, (ROW, OTHER), run / "report.html")


def test_summary_shows_numbers_of_finalists_and_dashes_of_others(summary: RunResult) -> None:
    lines = [" ".join(line.split()) for line in shown(summary).splitlines()]
    assert "0123456789ab 0.9812 (0.9688 to 0.9887) 0.9750 1.23 1.31 6.24 M 207 k 849 kB" in lines
    assert "ba9876543210 0.9812 (0.9688 to 0.9887) - 1.23 - 6.24 M 207 k 849 kB" in lines


def test_summary_shows_the_size_of_the_file_of_a_finalist(summary: RunResult) -> None:
    row = replace(ROW, file_bytes=221_000)
    lines = shown(replace(summary, front=(row, OTHER))).splitlines()
    sizes = [" ".join(line.split()[-2:]) for line in lines if "207 k" in line]
    assert sizes == ["221 kB", "849 kB"]


def test_summary_shows_further_objectives_measured_where_they_were(summary: RunResult) -> None:
    energy = Objective("energy_mj", "minimize", TARGET)
    objectives = (*summary.objectives, energy, Objective("macs", "minimize"))
    first, second = (
        replace(row, values={**row.values, energy.label: 7.5, "macs": 6_240_000})
        for row in (ROW, OTHER)
    )
    measured = replace(first, measured={energy.label: 8.25})
    text = shown(replace(summary, objectives=objectives, front=(measured, second)), width=220)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert (
        "0123456789ab 0.9812 (0.9688 to 0.9887) 0.9750 1.23 1.31 8.25 6.24 M 207 k 849 kB" in lines
    )
    assert "ba9876543210 0.9812 (0.9688 to 0.9887) - 1.23 - 7.5 6.24 M 207 k 849 kB" in lines
    assert f"energy_mj on {TARGET}" in text


def test_summary_names_files_and_next_commands(summary: RunResult) -> None:
    text = shown(summary)
    assert "12 candidates evaluated" in text
    assert "report   runs/[odd]/report.html" in text
    assert "bundle   runs/[odd]/bundles/0123456789ab  (knee, fastest)" in text
    assert "  hwnas export runs/[odd] --pick knee --out my-model" in text
    assert "  hwnas run runs/[odd]/bundles/0123456789ab image.png" in text


def test_summary_marks_a_network_that_breaks_a_limit(summary: RunResult) -> None:
    check = LimitCheck(
        f"latency_ms@{TARGET}", 0.1, 1.31, 1.2, 1.4, "measured", None, "broken", 12.1
    )
    broken = replace(ROW, picks=(), limits=(check,))
    tried = replace(OTHER, limits=(check,))
    marked = replace(summary, front=(broken, tried))
    text = shown(marked)
    assert "0123456789ab ✗" in text
    line = f"latency_ms@{TARGET} is 1.31 (measured); the limit is 0.1"
    assert f"✗ 0123456789ab: {line}\n" in text
    assert f"✗ ba9876543210: {line} (another candidate took its place)" in text
    assert "--pick 0123456789ab" in text, "there is no knee to export"
    assert "✗" not in shown(summary)
    rows = marked.to_json()["front"]
    assert [row["limit_state"] for row in rows] == ["broken", "broken"]
    assert summary.to_json()["front"][0]["limit_state"] is None


def test_summary_is_complete_on_a_narrow_terminal(summary: RunResult) -> None:
    text = shown(summary, width=60)
    assert "…" not in text
    assert "hwnas specialise runs/[odd] --target cpu-onnxruntime-fp32-b8-t1" in text


def test_summary_suggests_resume_without_finalists(summary: RunResult) -> None:
    text = shown(replace(summary, front=(OTHER,), report=None))
    assert "hwnas resume runs/[odd]" in text
    assert "bundle " not in text


@pytest.mark.parametrize("contended", [False, True])
def test_print_measurement_shows_cpu_and_wall_time(contended: bool) -> None:
    measured = Measurement(
        target=TARGET,
        clock="cpu",
        cpu_ms=Quantiles(1.1, 1.2, 1.3),
        wall_ms=Quantiles(1.4, 1.5, 1.6),
        n=50,
        contended=contended,
        anchor_ms=1.0,
        hardware="a processor",
        versions={},
        settings={},
        time="2026-01-01T00:00:00+00:00",
    )
    told = io.StringIO()
    print_measurement(Console(file=told, width=100), "model.onnx", measured)
    text = told.getvalue()
    assert "CPU time" in text
    assert "wall time" in text
    assert "latency_ms 1.2 (p50 of cpu time); a processor" in text
    assert ("measure again" in text) is contended


def test_number_texts_are_short() -> None:
    assert [count_text(n) for n in (7, 1500, 5_480_000, 2e9)] == ["7", "1.5 k", "5.48 M", "2 G"]
    assert [size_text(n) for n in (57_000, 1_234_567)] == ["57 kB", "1.23 MB"]
    assert metric_text(None) == "-"
    assert metric_text(0.5) == metric_text(0.5, (0.5, 0.5)) == "0.5000"
    assert metric_text(0.5, (0.25, 0.75)) == "0.5000 (0.2500 to 0.7500)"
