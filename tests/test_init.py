"""The command `hwnas init`, which writes a recipe from a few questions."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.recipe import read_recipe

Command = Callable[..., Any]
TARGET = "cpu-onnxruntime-fp32-b1-t1"


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "birds.npz"
    np.savez(path, train_images=np.zeros((4, 8, 8, 3), np.uint8), train_labels=np.arange(4))
    return path


def test_init_command_repeats_questions_until_answers_are_valid(
    hwnas: Command, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["nowhere", str(images), "one", "1", "12", "cpu-onnx", TARGET, "-3", "5"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers) + "\n"))
    answer = hwnas("init")
    assert answer.status == 0, answer
    assert "next: hwnas search birds.toml" in answer.out
    for told in (
        "nowhere does not exist",
        "'one' is not a number",
        "run.minutes is 1",
        "closest target",
    ):
        assert told in answer.err
    recipe, _ = read_recipe(Path("birds.toml"))
    assert recipe.run.minutes == 12
    assert recipe.objective[1].target == TARGET
    assert recipe.objective[1].limit == 5


def test_init_command_takes_answers_from_options(hwnas: Command, images: Path) -> None:
    given = ["--minutes", "9", "--target", TARGET, "--limit-ms", "0", "--out", "b.toml"]
    assert hwnas("init", images, *given).status == 0
    recipe, _ = read_recipe(Path("b.toml"))
    assert recipe.objective[1].limit is None
    hwnas("init", images, *given).refused("b.toml exists already")


def test_init_command_refuses_an_empty_standard_input(
    hwnas: Command, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    answer = hwnas("init", images, "--minutes", "9")
    assert answer.status == 2
    assert answer.err.splitlines()[-1] == (
        "error: init asks questions, but standard input gives no answer; give IMAGES, --minutes, "
        "--target and --limit-ms"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "1", "--target", TARGET, "--limit-ms", "0"], "run.minutes is 1"),
        (["--minutes", "9", "--target", "cpu", "--limit-ms", "0"], "closest target"),
        (["--minutes", "9", "--target", TARGET, "--limit-ms", "nan"], "expected a time above 0"),
    ],
)
def test_init_command_refuses_wrong_options_and_writes_nothing(
    hwnas: Command,
    images: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    hwnas("init", images, *options).refused(message)
    assert not [*images.parent.glob("*.toml")]
