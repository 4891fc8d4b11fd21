"""The comparison with once-for-all's own code, and its messages without that code."""

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.once_for_all.rival import our_space, settings_of
from experiments.record import read_rows

ROOT = Path(__file__).parents[2]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.once_for_all.run", "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_settings_list_every_block_of_every_stage() -> None:
    space = our_space()
    architecture = space.sample(random.Random(0))
    settings, values = settings_of(space, architecture), architecture.as_dict()
    assert len(settings["ks"]) == len(settings["e"]) == 20
    assert settings["d"] == [values[f"stage{stage}.depth"] for stage in range(1, 6)]
    assert settings["ks"][4] == values["stage2.block0.kernel_size"]
    assert settings["e"][17] == values["stage5.block1.expand_ratio"]


def test_once_for_all_experiment_says_how_to_install_the_package(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    if importlib.util.find_spec("ofa") is not None:
        pytest.skip("package ofa is installed in this environment")
    out = tmp_path / "out"
    told = refusal("once_for_all", "--out", out, "--ofa", tmp_path, "--seeds", "0")
    assert "--no-deps --target FOLDER ofa==" in told
    assert not out.exists()


def test_once_for_all_experiment_refuses_a_batch_of_one(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    told = refusal("once_for_all", "--out", tmp_path / "out", "--batch", "1")
    assert "normalisation needs two images" in told


@pytest.mark.slow
def test_once_for_all_experiment_times_steps_once(tmp_path: Path) -> None:
    ofa = os.environ.get("HWNAS_OFA")
    if not ofa:
        pytest.skip("HWNAS_OFA names no folder with the package ofa")
    options = ["--ofa", ofa, "--seeds", "0", "--rounds", "1", "--batch", "2", "--threads", "1"]
    options += ["--networks", "1"]
    first, second = (run(tmp_path, *options) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr
    assert "seed 0: sandwich steps" in first.stdout
    assert "seed 0: " not in second.stdout
    found = {(row.metric, row.subject) for row in read_rows(tmp_path / "results.jsonl")}
    assert ("times as fast, wall clock", "sandwich hwnas/ofa") in found
    assert ("activation", "hwnas new") in found
    assert ("step ratio, cpu clock", "ofa") in found
