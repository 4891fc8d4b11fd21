"""The experiment that compares planned with measured latencies of servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.record import read_rows


@pytest.mark.exhaustive
def test_serving_plan_experiment_measures_each_load_once(
    experiment: Callable[..., Any], tmp_path: Path
) -> None:
    options = ["--seeds", 0, "--sizes", 96, "--seconds", 1]
    options += ["--out", tmp_path / "out", "--work", tmp_path / "work"]
    first = experiment("serving_plan.run", *options)
    assert first.status == 0, first.err
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    names = ("simulated", "idle", "M/M/1")
    assert {row.subject for row in rows} == {f"96 pixels {name}" for name in names}
    assert all(row.value is not None and row.value >= 0 for row in rows)
    assert experiment("serving_plan.run", *options).status == 0
    assert read_rows(tmp_path / "out" / "results.jsonl") == rows
