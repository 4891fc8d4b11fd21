"""The photograph experiments at toy size: rivals, ablation, strategies and targets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.photographs.ablation.run import WITHOUT
from experiments.photographs.strategies.run import STRATEGIES
from experiments.record import read_rows

TARGET = "cpu-onnxruntime-fp32-b1-t1"
TOY = [
    "train.budget_minutes=0.03",
    "train.batch_size=16",
    "search.workers=0",
    "search.trials=4",
    "search.batch=4",
    "predictor.networks=4",
    "deploy.top=2",
    "deploy.finetune_minutes=0.02",
    "deploy.reference_minutes=0.02",
]


def toy_images(path: Path) -> None:
    """Write images of two classes that differ in brightness."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 120), ("test", 40)):
        labels = np.arange(count) % 2
        noise = rng.integers(0, 100, (count, 32, 32, 3))
        arrays[f"x_{split}"] = (noise + 100 * labels[:, None, None, None]).astype(np.uint8)
        arrays[f"y_{split}"] = labels
    np.savez(path, **arrays)


@pytest.fixture
def run(experiment: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that runs an experiment, which must succeed, and returns its output."""

    def succeeded(module: str, *options: str | Path) -> str:
        done = experiment(f"photographs.{module}", *options)
        assert done.status == 0, done.err
        return str(done.out)

    return succeeded


@pytest.mark.slow
def test_photograph_experiment_compares_with_rivals_and_repeats_nothing(
    run: Callable[..., str], tmp_path: Path
) -> None:
    toy_images(tmp_path / "toy.npz")
    out = tmp_path / "out"
    command: list[str | Path] = ["run", "--minutes", "3"]
    command += ["--images", tmp_path / "toy.npz", "--rival-minutes", "0.02", "--targets", TARGET]
    command += ["--out", out, "--work", tmp_path / "work"]
    command += [part for setting in TOY for part in ("--set", setting)]

    assert "seed 0: running the whole job of 3 minutes" in run(*command)
    rows = read_rows(out / "results.jsonl")
    metrics = {row.metric for row in rows}
    assert metrics == {"accuracy_gain", "speed_at_accuracy", "job_over_budget"}
    rivals = {row.subject for row in rows if row.metric == "speed_at_accuracy"}
    assert rivals == {
        "3-minutes hardest-rival",
        *(f"3-minutes mobilenet-v3-small-w{width}" for width in ("0.35", "0.5", "0.75", "1")),
    }
    by_rival = {
        row.subject: row.value
        for row in rows
        if row.metric == "speed_at_accuracy" and row.value is not None
    }
    assert by_rival.pop("3-minutes hardest-rival") == min(by_rival.values())
    again = run(*command)
    assert "the whole job" not in again
    assert read_rows(out / "results.jsonl") == rows


@pytest.mark.exhaustive
def test_ablation_records_the_accuracy_change_of_each_left_out_part(
    run: Callable[..., str], tmp_path: Path
) -> None:
    toy_images(tmp_path / "toy.npz")
    options = ["--images", tmp_path / "toy.npz", "--minutes", "0.02", "--seeds", "0"]
    run("ablation.run", *options, "--out", tmp_path / "out", "--work", tmp_path / "work")
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    accuracy = {row.subject: row.value for row in rows if row.metric == "test_accuracy"}
    changes = {row.subject: row.value for row in rows if row.metric == "accuracy_change"}
    assert set(accuracy) == {"all", *changes}
    assert len(changes) == len(WITHOUT)
    for subject, change in changes.items():
        assert change == pytest.approx(accuracy[subject] - accuracy["all"])


@pytest.mark.exhaustive
def test_strategy_experiment_compares_strategies_and_repeats_nothing(
    run: Callable[..., str], tmp_path: Path
) -> None:
    toy_images(tmp_path / "toy.npz")
    command: list[str | Path] = ["strategies.run"]
    command += ["--images", tmp_path / "toy.npz", "--minutes", "3", "--out", tmp_path / "out"]
    command += ["--work", tmp_path / "work"]
    command += [part for setting in TOY for part in ("--set", setting)]
    first, second = run(*command), run(*command)
    assert "seed 0: " not in second
    rows = {(row.metric, row.subject) for row in read_rows(tmp_path / "out" / "results.jsonl")}
    assert {("test_accuracy_at_0.4_ms", f"3-minutes {name}") for name in STRATEGIES} <= rows
    rivals = [name for name in STRATEGIES if name != "hwnas"]
    assert {("hypervolume_ratio", f"3-minutes {name}") for name in rivals} <= rows
    for name in STRATEGIES:
        assert f"seed 0: 3 minutes, {name}" in first


@pytest.mark.exhaustive
def test_target_experiment_records_the_minutes_of_a_further_target(
    run: Callable[..., str], tmp_path: Path
) -> None:
    toy_images(tmp_path / "toy.npz")
    further = "cpu-onnxruntime-fp32-b8-t1"
    command: list[str | Path] = ["targets.run", "--further", further, "--minutes", "3"]
    command += ["--images", tmp_path / "toy.npz", "--out", tmp_path / "out"]
    command += ["--work", tmp_path / "work"]
    command += [part for setting in TOY for part in ("--set", setting)]
    run(*command)
    rows = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    minutes = {
        metric: {side: rows[metric, side].value for side in ("hwnas", "supernet")}
        for metric in ("minutes_of_the_job", "minutes_of_a_further_target")
    }
    further_minutes = minutes["minutes_of_a_further_target"]
    for side, value in further_minutes.items():
        assert value is not None
        assert 0 < value < (minutes["minutes_of_the_job"][side] or 0)
    never = further_minutes["hwnas"] <= further_minutes["supernet"]  # type: ignore[operator]
    assert (rows["break_even_targets", "supernet"].value is None) == never
    assert {("hypervolume_ratio", further), ("test_accuracy", f"{further} hwnas")} <= set(rows)
    assert "seed 0: " not in run(*command)
