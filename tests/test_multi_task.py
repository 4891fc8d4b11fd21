"""Networks that do several tasks, from an archive to the bundles of the network and of one task."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas import experiment, export
from hwnas import open as open_run
from hwnas.deploy import Bundle
from hwnas.errors import ConfigError
from hwnas.progress import SilentReporter
from hwnas.recipe import read_recipe
from hwnas.stages.finalists.task_export import check_task_path
from hwnas.stages.run_inputs import RunInputs

RECIPE = """
name = "shapes"

[data]
source = "npz:images.npz"
validation_fraction = 0.2

[task]
name = "multi-task"
names = ["bar", "shade", "turn"]
class_names = [["left", "middle", "right"], ["dark", "light"], ["upright", "lying"]]

[space]
name = "experts"
depth = [2]
width = [16, 24]
heads = [1]
mlp_ratio = [2]
patch_size = [4]
head_width = 8
resolution = [8]
expert_every = 1
activation = "piecewise-gelu"

[train]
epochs = 12
batch_size = 32
learning_rate = 0.01
workers = 0

[[objective]]
metric = "accuracy"
direction = "maximize"

[[objective]]
metric = "macs"
direction = "minimize"

[search]
trials = 4
workers = 0

[deploy]
top = 1
finetune_epochs = 0
"""
CLASSES = {
    "bar": ["left", "middle", "right"],
    "shade": ["dark", "light"],
    "turn": ["upright", "lying"],
}
SIZES = {"bar": 3, "shade": 2, "turn": 2}
CUT = 300


def images(n: int = 400) -> tuple[Any, Any]:
    """Return images of a bar on a background: its place, which is lighter, and its direction."""
    rng = np.random.default_rng(0)
    bar, shade, turn = rng.integers(0, [3, 2, 2], (n, 3)).T
    pixels = np.where(shade[:, None, None], 80, 160) + rng.integers(0, 40, (n, 8, 8))
    for row in range(n):
        place = slice(3 * bar[row], 3 * bar[row] + 2)
        upright = (slice(None), place) if not turn[row] else (place, slice(None))
        pixels[row][upright] += 80 if shade[row] else -80
    classes = np.stack([bar, shade, turn], axis=1)
    return pixels.clip(0, 255).astype(np.uint8)[..., None], classes


def write(folder: Path, n: int = 400) -> None:
    """Write the images and the recipe to a folder."""
    pixels, classes = images(n)
    cut = n * 3 // 4
    parts = {"train": slice(0, cut), "test": slice(cut, n)}
    arrays = {f"x_{part}": pixels[rows] for part, rows in parts.items()}
    arrays |= {f"y_{part}": classes[rows] for part, rows in parts.items()}
    np.savez(folder / "images.npz", **arrays)
    (folder / "recipe.toml").write_text(RECIPE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("shapes")
    write(folder)
    return experiment.run(folder / "recipe.toml", folder / "run", reporter=SilentReporter()).run


@pytest.fixture(scope="module")
def whole(run: Path) -> Bundle:
    """Return the bundle of the network of that run."""
    (folder,) = (run / "bundles").iterdir()
    return Bundle.load(folder)


@pytest.mark.slow
def test_bundle_of_several_tasks_answers_for_each(whole: Bundle) -> None:
    found = {(m["name"], m.get("split")): m["value"] for m in whole.description["metrics"]}
    pixels, classes = images()
    answers = whole.run(pixels[CUT:])
    shares = []
    for column, (task, labels) in enumerate(CLASSES.items()):
        said = [labels.index(answer["tasks"][task]["label"]) for answer in answers]
        shares.append(float(np.mean(said == classes[CUT:, column])))
        assert found[f"{task}_accuracy", "test"] == pytest.approx(shares[-1], abs=0.02)
    assert found["accuracy", "test"] == pytest.approx(np.mean(shares), abs=0.02)
    assert found["accuracy", "test"] > 0.7, "it has learned something"
    card = (whole.folder / "README.md").read_text()
    assert "scores for 3 tasks side by side: 3 classes of bar, 2 classes of shade" in card
    assert 'for task, count in about["outputs"]["tasks"]:' in card


@pytest.mark.slow
def test_model_card_code_prints_the_class_of_each_task(
    run: Path,
    whole: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(whole.folder, tmp_path / "bundle"))
    shutil.copy(run / "example.png", folder / "image.png")
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    exec(code, {})
    (answer,) = whole.run([run / "example.png"])
    said = {task: found["label"] for task, found in answer["tasks"].items()}
    assert capsys.readouterr().out.splitlines() == [f"{t} {label}" for t, label in said.items()]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["bar", "turn"])
def test_path_of_a_task_is_a_bundle_with_the_outputs_of_the_network(
    run: Path, whole: Bundle, task: str, tmp_path: Path
) -> None:
    path = export(run, tmp_path / "path", task=task)
    path.verify()
    pixels, _ = images()
    start = sum(SIZES[name] for name in list(SIZES)[: list(SIZES).index(task)])
    expected = whole.predict(pixels[CUT:])[:, start : start + SIZES[task]]
    np.testing.assert_allclose(path.predict(pixels[CUT:]), expected, rtol=1e-4, atol=1e-5)
    about = path.description
    assert (about["task"], about["provenance"]["network"]) == ("classification", whole.folder.name)
    assert path.weights().keys() < {
        name.replace(f".experts.{letter}.", ".experts.a.")
        for name in whole.weights()
        for letter in "abc"
    }
    found = {(m["name"], m.get("split")): m["value"] for m in about["metrics"]}
    of_network = {(m["name"], m.get("split")): m["value"] for m in whole.description["metrics"]}
    assert found["accuracy", "test"] == pytest.approx(of_network[f"{task}_accuracy", "test"])
    assert found["macs", None] == of_network[f"macs@{task}", None] < of_network["macs", None]
    answers = path.run(pixels[CUT:])
    assert {"label", "probability", "top"} == answers[0].keys()


@pytest.mark.slow
def test_report_states_the_cost_of_each_path(run: Path, whole: Bundle) -> None:
    page = (run / "report.html").read_text()
    assert "Multiply-accumulates of the path of one task alone" in page
    assert all(f"macs@{task}" in (whole.folder / "README.md").read_text() for task in SIZES)


@pytest.mark.slow
def test_export_of_a_task_takes_any_network_of_the_search(run: Path, tmp_path: Path) -> None:
    opened = open_run(run)
    others = [row.id for row in opened.results[None].front if row.bundle is None]
    if not others:
        pytest.skip("all networks of the front are finalists")
    path = opened.best(others[0]).export(tmp_path / "path", task="turn")
    assert path.description["provenance"]["network"] == others[0]


@pytest.mark.slow
def test_export_refuses_an_unknown_task_in_one_line(
    run: Path, hwnas: Callable[..., Any], tmp_path: Path
) -> None:
    done = hwnas("export", run, "--task", "turns", "--out", tmp_path / "path")
    done.refused("--task is 'turns'; did you mean 'turn'?")
    assert not (tmp_path / "path").exists()


@pytest.mark.slow
def test_commands_export_the_path_of_a_task_and_run_both_networks(
    run: Path, whole: Bundle, hwnas: Callable[..., Any], tmp_path: Path
) -> None:
    done = hwnas("export", run, "--task", "bar", "--out", tmp_path / "path")
    assert done.status == 0, done.err
    assert "path of task bar, " in done.out
    shown = hwnas("run", whole.folder, run / "example.png")
    assert all(f"{task}: " in shown.out for task in SIZES)
    assert "turn" not in hwnas("run", tmp_path / "path", run / "example.png").out


def test_networks_of_one_task_have_no_path_to_export(quick_recipe: Path) -> None:
    inputs = RunInputs.prepare(read_recipe(quick_recipe)[0], quick_recipe.parent)
    with pytest.raises(ConfigError, match="space 'mobilenet' with task classification has no path"):
        check_task_path(inputs, "digit")


def test_more_experts_than_tasks_are_refused_before_training(
    tmp_path: Path, hwnas: Callable[..., Any]
) -> None:
    write(tmp_path, 60)
    done = hwnas("search", tmp_path / "recipe.toml", "--set", "space.experts=4")
    done.refused("space.experts is 4, more than 3 tasks can use; expected 1 to 3")
