"""The peak memory experiment at toy size."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.record import read_rows

ROOT = Path(__file__).parents[2]
CASE = "small-64 cpu-onnxruntime-fp32-b1-t1"
TOY = ["--seeds", "0", "--spaces", "small-64", "--targets", "cpu-onnxruntime-fp32-b1-t1"]
TOY += ["--networks", "5", "--known", "3", "--processes", "1"]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.peak_memory.run", "--out", str(folder / "out")]
    command += ["--work", str(folder / "work"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_peak_memory_experiment_records_results_and_repeats_nothing(tmp_path: Path) -> None:
    first = run(tmp_path, *TOY)
    assert first.returncode == 0, first.stderr
    assert "5/5 " in first.stdout
    observed = (tmp_path / "out" / "observations.jsonl").read_text()
    found = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out/results.jsonl")}
    for method in ("predictor", "unmeasured", "liveness", "scaled-liveness"):
        assert found["median_error", f"{CASE} {method}"].n == 2
        assert f"| spearman | {CASE} {method} |" in first.stdout
    assert ("coverage_of_90", f"{CASE} predictor") in found

    second = run(tmp_path, *TOY)
    assert second.returncode == 0, second.stderr
    assert "5/5 " not in second.stdout
    assert (tmp_path / "out" / "observations.jsonl").read_text() == observed


def test_peak_memory_experiment_refuses_too_few_networks(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    told = refusal("peak_memory", "--out", tmp_path / "out", "--networks", "10")
    assert "--known is 10 of 10 networks" in told
    assert not (tmp_path / "out").exists()
