"""The cascade experiment on a run that is already finished."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.record import read_rows

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_cascade_experiment_records_cascades_and_single_networks(
    finished: Path, finished_recipe: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "work" / "seed-0" / "run")
    command = [sys.executable, "-m", "experiments.deploy.cascade.run", "--seeds", "0"]
    command += ["--recipe", str(finished_recipe), "--finalists", "3", "--points", "1"]
    command += ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    rows = {row.key: row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    ratio = rows["latency_ratio", "1 points below the best", 0]
    assert 0 < ratio.details["target_accuracy"] < 1
    single = rows["test_accuracy", "1 points below the best: single", 0]
    assert (single.n, single.unit) == (200, "fraction")
