"""GPU time of the stages of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hwnas.identity import Identity
from hwnas.recipe import read_recipe
from hwnas.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path, tiny_recipe: Path) -> RunFolder:
    recipe, text = read_recipe(tiny_recipe)
    return RunFolder.create(tmp_path / "run", recipe, text, tiny_recipe.parent)


def test_stage_without_gpu_work_has_no_gpu_time(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds on machines with a GPU, too."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    run.perform("calibrate", Identity({}), lambda: time.sleep(0.01))
    record = run.stages["calibrate"]
    assert record.wall_s >= 0.01
    assert record.gpu_s is None


def test_stage_gpu_time_adds_up_over_sessions(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy:
        seconds: float | None = 3.0

        def sample(self, processes: set[int], seconds: float) -> None:
            assert os.getpid() in processes

    monkeypatch.setattr("hwnas.run_folder.GpuClock", Busy)
    run.perform("train", Identity({}), lambda: None)
    run.perform("train", Identity({}), lambda: None)
    assert run.stages["train"].gpu_s == 6.0
    Busy.seconds = None  # the rest of the stage uses no GPU
    run.perform("train", Identity({}), lambda: None)
    assert run.stages["train"].gpu_s == 6.0
