"""Experiment on pairs of all scored networks and on a cache, on a run that is finished."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.record import read_rows


@pytest.mark.slow
def test_cascade_pairs_experiment_records_choices_and_caches(
    experiment: Callable[..., Any], finished: Path, finished_recipe: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "work" / "seed-0" / "run")
    options = ["--seeds", "0", "--recipe", finished_recipe, "--finalists", "3", "--points", "5"]
    options += ["--images", "60", "--risk", "0.9", "--pairs", "1"]
    folders = ["--out", tmp_path / "out", "--work", tmp_path / "work"]
    done = experiment("deploy.cascade_pairs.run", *options, *folders)
    assert done.status == 0, done.err
    rows = {row.key: row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    ratio = rows["cost_ratio", "5 points below the best", 0]
    assert ratio.value is not None
    assert 0 < ratio.value <= 1
    assert ratio.details["scored"] == ratio.details["networks"] > 3
    assert rows["accuracy_change", "equal", 0].value == 0
    assert 0.3 < rows["hit_rate", "equal", 0].value < 0.7
    assert rows["hit_rate", "near", 0].value > 0
