"""The load test of `hwnas serve` at toy size, with its client and its server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.record import read_rows

ROOT = Path(__file__).parents[2]
TOY = ["--size", "32", "--seconds", "2", "--rounds", "1", "--connections", "4"]


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="server and client need a core each")
def test_the_load_test_records_its_answers_and_does_nothing_twice(tmp_path: Path) -> None:
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))[:2]]
    command = [sys.executable, "-m", "experiments.deploy.serve", *TOY, "--cores", *cores]
    command += ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "round 0: served" in first.stdout
    rows = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out" / "serve.jsonl")}
    served = rows["images_per_second", "hwnas serve"]
    bare = rows["images_per_second", "bare loop"]
    assert served.details["errors"] == {}
    assert served.n > 0
    assert rows["ratio", "bare loop / hwnas serve, median"].value == pytest.approx(
        bare.value / served.value
    )
    p50, p99 = (rows[name, "hwnas serve"].value for name in ("p50_ms", "p99_ms"))
    assert 0 < p50 <= p99
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "round 0" not in second.stdout
