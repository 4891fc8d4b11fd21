"""Killed runs: resume continues them, and nothing that was finished is lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.progress import make_reporter
from hwnas.run_folder import RunFolder

TARGET = "cpu-onnxruntime-fp32-b1-t1"
QUIET = make_reporter(quiet=True)


def start(recipe: Path, run: Path, *overrides: str) -> subprocess.Popen[str]:
    sets = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "hwnas.cli", "search", str(recipe), "--run", str(run), *sets]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def go_on(run: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hwnas.cli", "resume", str(run)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def wait_until(happened: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    while not happened():
        assert child.poll() is None, child.communicate()
        time.sleep(0.002)


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def begun(run: Path, stage: str) -> bool:
    return any(f'"stage", "stage": "{stage}"' in line for line in lines(run / "log.jsonl"))


def trials(run: Path) -> dict[int, tuple[str, list[float]]]:
    """Return the finished trials, loaded with Optuna."""
    if not (run / "study.db").exists():
        return {}
    storage = f"sqlite:///{run / 'study.db'}"
    if "search" not in optuna.get_all_study_names(storage):
        return {}
    done = optuna.load_study(study_name="search", storage=storage).trials
    return {
        t.number: (t.user_attrs["candidate"], t.values)
        for t in done
        if t.state == optuna.trial.TrialState.COMPLETE
    }


def scores(run: Path) -> list[str]:
    return [line for line in lines(run / "scores.jsonl") if line.endswith("\n")]


def assert_nothing_was_lost(
    run: Path, trials_before: dict[int, tuple[str, list[float]]], scores_before: list[str]
) -> None:
    after = trials(run)
    assert after.items() >= trials_before.items()
    assert len({name for name, _ in after.values()}) == len(after) == 8
    assert scores(run)[: len(scores_before)] == scores_before
    keys = [tuple(json.loads(line)["key"]) for line in scores(run)]
    assert len(set(keys)) == len(keys), "nothing was evaluated twice"
    [bundle] = (run / "bundles").iterdir()
    Bundle.load(bundle).verify()
    assert (run / "report.html").is_file()
    assert {record.state for record in RunFolder.open(run).stages.values()} == {"done"}
    assert not list(run.rglob("*.tmp"))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "training": lambda run: bool(lines(run / "supernet" / "training.jsonl")),
    "the first score": lambda run: bool(lines(run / "scores.jsonl")),
    "half of the search": lambda run: len(lines(run / "scores.jsonl")) >= 5,
    "finalists": lambda run: begun(run, "finalists"),
    "a finalist was tuned": lambda run: any((run / "finalists").glob("*.safetensors")),
    "report": lambda run: begun(run, "report"),
}


@pytest.mark.slow
def test_resume_loses_nothing_after_a_kill_in_the_search(
    quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = start(quick_recipe, run)
    wait_until(lambda: MOMENTS["half of the search"](run), child)
    kill(child)
    trials_before, scores_before = trials(run), scores(run)
    assert len(scores_before) >= 5
    experiment.resume(run, QUIET)
    assert_nothing_was_lost(run, trials_before, scores_before)


@pytest.mark.slow
def test_resume_loses_nothing_after_a_kill_in_every_stage(
    quick_recipe: Path, tmp_path: Path
) -> None:
    """Kill one run repeatedly, each time a little later."""
    rng, run = random.Random(0), tmp_path / "run"
    child = start(quick_recipe, run, "train.checkpoint_seconds=0.01")
    for happened in MOMENTS.values():
        wait_until(lambda happened=happened: happened(run), child)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.05))
        if child.poll() is not None:
            break  # it finished before the last moment
        kill(child)
        trials_before, scores_before = trials(run), scores(run)
        child = go_on(run)
    _, told = child.communicate(timeout=120)
    assert child.returncode == 0, told
    assert_nothing_was_lost(run, trials_before, scores_before)


@pytest.mark.slow
def test_resume_repeats_a_calibration_that_was_killed(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ("search.trials=8", "deploy.top=1", "predictor.networks=12")
    child = start(tiny_recipe, run, *small)
    wait_until(lambda: begun(run, f"calibrate@{TARGET}"), child)
    time.sleep(0.05)
    kill(child)
    assert RunFolder.open(run).stages[f"calibrate@{TARGET}"].state == "running"
    experiment.resume(run, QUIET)
    assert_nothing_was_lost(run, {}, [])


@pytest.mark.slow
def test_run_starts_in_a_folder_of_a_killed_start(quick_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "cache").mkdir(parents=True)
    (run / "recipe.toml").write_text(quick_recipe.read_text())
    summary = experiment.run(quick_recipe, run, reporter=QUIET)
    assert summary.trials == 8


@pytest.mark.slow
def test_resumed_training_gives_the_weights_of_an_uninterrupted_one(
    quick_recipe: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    overrides = ("train.epochs=12", "train.checkpoint_seconds=0.01")
    child = start(quick_recipe, cut, *overrides)
    wait_until((cut / "supernet" / "checkpoint.safetensors").exists, child)
    kill(child)
    assert not (cut / "supernet" / "weights.safetensors").exists()
    experiment.resume(cut, QUIET)
    experiment.run(quick_recipe, whole, overrides, QUIET)
    weights = [run / "supernet" / "weights.safetensors" for run in (cut, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert (cut / "front.csv").read_text() == (whole / "front.csv").read_text()


def raylets(of: int) -> list[psutil.Process]:
    children = psutil.Process(of).children(recursive=True)
    return [child for child in children if child.name() == "raylet"]


@pytest.mark.slow
@pytest.mark.ray
def test_resume_loses_nothing_after_the_ray_node_is_killed(
    quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = start(quick_recipe, run, "search.workers=1", "search.batch=1")
    wait_until(lambda: bool(lines(run / "scores.jsonl")), child)
    [raylet] = raylets(child.pid)
    os.kill(raylet.pid, signal.SIGKILL)
    _, told = child.communicate(timeout=180)
    trials_before, scores_before = trials(run), scores(run)
    assert child.returncode != 0, "Ray ends the process that was connected to it"
    assert "Traceback" not in told, told
    child = go_on(run)
    _, told = child.communicate(timeout=180)
    assert child.returncode == 0, told
    assert_nothing_was_lost(run, trials_before, scores_before)
