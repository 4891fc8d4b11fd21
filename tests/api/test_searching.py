"""Searches from Python: the same run from objects, from names and from the command line."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.samplers import RandomSampler
from sklearn.datasets import load_digits
from torch import Tensor, nn

import hwnas
from hwnas.api.run import Run
from hwnas.errors import ConfigError, RunError
from hwnas.run_folder import RunFolder
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.mobilenet.space import mobilenet

Command = Callable[..., Any]

QUICK: dict[str, Any] = {
    "objectives": [hwnas.maximize("accuracy"), hwnas.minimize("params")],
    "training": hwnas.TrainConfig(epochs=1, learning_rate=0.01, workers=0),
    "trials": 6,
    "settings": {
        "data.train_limit": 200,
        "data.test_limit": 50,
        "search.workers": 0,
        "deploy": hwnas.DeployConfig(top=1, finetune_epochs=0),
    },
    "reporter": hwnas.SilentReporter(),
}
"""Arguments of a search of a few seconds, in which nothing is timed."""


def own_space(image_shape: tuple[int, int, int], outputs: int) -> SearchSpace:
    return mobilenet(image_shape, outputs, preset="tiny", width=(0.5,))


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Command:
    """Return the function that runs a command; its fixture has the name of the package."""
    found: Command = request.getfixturevalue("hwnas")
    return found


@pytest.fixture
def digits() -> tuple[Any, Any]:
    found = load_digits()
    return np.rint(found.images * 255 / 16).astype(np.uint8)[:400], found.target[:400]


@pytest.mark.slow
def test_search_of_arrays_is_continued_from_the_command_line(
    digits: tuple[Any, Any], tmp_path: Path, command: Command
) -> None:
    space = hwnas.spaces.MobileNet(preset="tiny", width=(0.5,))
    run = hwnas.search(digits, space=space, path=tmp_path / "run", **QUICK)
    assert run.status["state"] == "finished"
    assert run.status["trials"] == 6
    answer = command("resume", tmp_path / "run", "--set", "search.trials=8")
    assert answer.status == 0, answer
    assert hwnas.open(tmp_path / "run").status["trials"] == 8
    (tmp_path / "run").rename(tmp_path / "moved")
    assert "nothing is left to do" in command("resume", tmp_path / "moved").err
    again = hwnas.open(tmp_path / "moved").resume(trials=9)
    assert again.status["trials"] == 9


@pytest.mark.slow
def test_search_with_the_same_arguments_finds_the_finished_run(
    digits: tuple[Any, Any], tmp_path: Path
) -> None:
    space = hwnas.spaces.MobileNet(preset="tiny", width=(0.5,))
    arguments = {"space": space, "path": tmp_path / "run", **QUICK}
    first = hwnas.search(digits, **arguments)
    again = hwnas.search(digits, **arguments)
    assert [row.id for row in again.front] == [row.id for row in first.front]
    images, labels = digits
    with pytest.raises(RunError, match="holds a run on other images; give another name"):
        hwnas.search((images[::-1], labels[::-1]), **arguments)
    assert hwnas.open(tmp_path / "run").status["state"] == "finished"
    with pytest.raises(RunError, match="holds a run of another recipe"):
        hwnas.search(digits, **{**arguments, "seed": 1})


@pytest.mark.slow
def test_search_with_objects_is_continued_with_the_same_objects(
    tmp_path: Path, command: Command
) -> None:
    def local_space(image_shape: tuple[int, int, int], outputs: int) -> SearchSpace:
        return own_space(image_shape, outputs)

    path, sampler = tmp_path / "run", RandomSampler(seed=3)
    run = hwnas.search("digits", space=local_space, sampler=sampler, path=path, **QUICK)
    written = tomllib.loads((path / "recipe.toml").read_text(encoding="utf-8"))
    assert written["space"]["name"] == "python:space"
    assert written["search"]["sampler"] == "python:sampler"
    assert run.resume(7).status["trials"] == 7
    command("resume", path, "--set", "search.trials=8").refused(
        "is an object of a Python program, without a name; continue the run in Python, with "
        "hwnas.open(RUN, "
    )
    opened = hwnas.open(path, space=local_space, sampler=sampler)
    assert opened.resume(8).status["trials"] == 8
    other = hwnas.open(path, space=lambda image_shape, outputs: mobilenet(image_shape, outputs))
    with pytest.raises(ConfigError, match="sampler of this run is an object"):
        other.resume()


class Small(nn.Module):
    """Classifier of one's own, for grey images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.classifier = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


@pytest.mark.slow
def test_search_within_a_module_of_ones_own(tmp_path: Path) -> None:
    model = Small()
    run = hwnas.search("digits", space=model, path=tmp_path / "run", **QUICK)
    assert max(row.params for row in run.front) <= sum(p.numel() for p in model.parameters())
    bundle = run.best("most-accurate").export(tmp_path / "model")
    assert bundle.predict(np.zeros((2, 8, 8, 1), np.uint8)).shape == (2, 10)
    assert hwnas.open(tmp_path / "run", space=model).resume().status["state"] == "finished"


@pytest.mark.slow
def test_search_recipe_does_what_the_command_does(quick_recipe: Path, tmp_path: Path) -> None:
    run = hwnas.search_recipe(
        quick_recipe,
        path=tmp_path / "run",
        settings={"search.trials": 4},
        reporter=hwnas.SilentReporter(),
    )
    assert isinstance(run, Run)
    assert run.status["trials"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": "mobilnet"}, "unknown space 'mobilnet'; did you mean 'mobilenet'"),
        ({"sampler": "guide"}, "unknown sampler 'guide'; did you mean 'guided'"),
        ({"objectives": []}, "give at least one"),
        ({"space": hwnas.spaces.MobileNet(preset="tinny")}, "tinny"),
        ({"space": nn.Linear(3, 2)}, "Linear does not run on an input of (2, 1, 8, 8)"),
        ({"evaluator": "none"}, "unknown evaluator 'none'"),
    ],
)
def test_search_that_cannot_work_leaves_no_folder(
    arguments: dict[str, Any], message: str, digits: tuple[Any, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    with pytest.raises(ConfigError) as raised:
        hwnas.search(digits, path=path, **{**QUICK, **arguments})
    assert message in str(raised.value)
    assert not path.exists()


@pytest.mark.slow
def test_run_keeps_its_objects_when_opened_again(tmp_path: Path) -> None:
    space = own_space((8, 8, 1), 10)
    run = hwnas.search("digits", space=space, path=tmp_path / "run", **QUICK)
    assert RunFolder.open(run.folder).objects.space is space
    assert len(run.front.to_frame()) == len(run.front)
