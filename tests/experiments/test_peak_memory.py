"""The peak memory experiment at toy size."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.record import read_rows

CASE = "small-64 cpu-onnxruntime-fp32-b1-t1"
TOY = ["--seeds", "0", "--spaces", "small-64", "--targets", "cpu-onnxruntime-fp32-b1-t1"]
TOY += ["--networks", "5", "--known", "3", "--processes", "1"]


@pytest.mark.exhaustive
def test_peak_memory_experiment_records_results_and_repeats_nothing(
    experiment: Callable[..., Any], tmp_path: Path
) -> None:
    options = ["--out", tmp_path / "out", "--work", tmp_path / "work", *TOY]
    first = experiment("peak_memory.run", *options)
    assert first.status == 0, first.err
    assert "5/5 " in first.out
    observed = (tmp_path / "out" / "observations.jsonl").read_text()
    found = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out/results.jsonl")}
    for method in ("predictor", "unmeasured", "liveness", "scaled-liveness"):
        assert found["median_error", f"{CASE} {method}"].n == 2
        assert f"| spearman | {CASE} {method} |" in first.out
    assert ("coverage_of_90", f"{CASE} predictor") in found

    second = experiment("peak_memory.run", *options)
    assert second.status == 0, second.err
    assert "5/5 " not in second.out
    assert (tmp_path / "out" / "observations.jsonl").read_text() == observed


def test_peak_memory_experiment_refuses_too_few_networks(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    told = refusal("peak_memory", "--out", tmp_path / "out", "--networks", "10")
    assert "--known is 10 of 10 networks" in told
    assert not (tmp_path / "out").exists()
