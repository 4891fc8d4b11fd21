"""The commands `hwnas finetune-plan` and `hwnas finetune`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BUNDLE = Path(__file__).parent / "old_runs/schema_1/run/bundles/2c38d0692970"
IMAGES = f"npz:{Path(__file__).parent / 'old_runs/schema_1/digits.npz'}"
PLAN = ("finetune-plan", BUNDLE, "--data", IMAGES, "--probe-steps", "2")
Command = Callable[..., Any]


@pytest.mark.slow
def test_finetune_commands_plan_train_and_write_a_bundle(hwnas: Command, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "new"
    answer = hwnas(*PLAN, "--memory", "64MB", "--out", plan)
    assert answer.status == 0, answer.err
    assert "trained layer" in answer.out
    assert "bytes predicted: weights" in answer.out
    assert f"next: hwnas finetune {BUNDLE}" in answer.out.replace("\n", " ")
    words = ("finetune", BUNDLE, "--data", IMAGES, "--plan", plan, "--out", out, "--steps", "3")
    answer = hwnas(*words, "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["after"]["split"] == "test"
    assert hwnas("verify", out).status == 0
    hwnas(*words).refused("exists already")


@pytest.mark.slow
def test_finetune_plan_says_the_least_memory_in_one_line(hwnas: Command, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    hwnas(*PLAN, "--memory", "1KB", "--out", plan).refused("too little", "the least is", "batch")
    assert not plan.exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--memory", "much"), ["--memory is 'much'", "such as 320KB"]),
        (("--memory", "1MB", "--optimizer", "sdg"), ["unknown optimizer 'sdg'", "'sgd'"]),
        (("--memory", "1MB", "--batch", "0"), ["batch is 0", "at least 1"]),
    ],
)
def test_finetune_plan_refuses_wrong_options(
    words: tuple[str, ...], parts: list[str], hwnas: Command, tmp_path: Path
) -> None:
    hwnas(*PLAN, *words, "--out", tmp_path / "plan.json").refused(*parts)


def test_finetune_refuses_a_file_that_is_no_plan(hwnas: Command, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    words = ("finetune", BUNDLE, "--data", IMAGES, "--plan", tmp_path / "plan.json")
    hwnas(*words, "--out", tmp_path / "new").refused("is not a plan", "hwnas finetune-plan")
