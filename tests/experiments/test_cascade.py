"""The cascade experiment on a run that is already finished."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.record import read_rows


@pytest.mark.slow
def test_cascade_experiment_records_cascades_and_single_networks(
    experiment: Callable[..., Any], finished: Path, finished_recipe: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "work" / "seed-0" / "run")
    options = ["--seeds", "0", "--recipe", finished_recipe, "--finalists", "3", "--points", "1"]
    folders = ["--out", tmp_path / "out", "--work", tmp_path / "work"]
    done = experiment("deploy.cascade.run", *options, *folders)
    assert done.status == 0, done.err
    rows = {row.key: row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    ratio = rows["latency_ratio", "1 points below the best", 0]
    assert 0 < ratio.details["target_accuracy"] < 1
    single = rows["test_accuracy", "1 points below the best: single", 0]
    assert (single.n, single.unit) == (200, "fraction")
