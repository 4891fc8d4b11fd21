"""Searches from images, a target and a time budget, without a recipe."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hwnas.experiment.from_images import recipe_for_images
from hwnas.recipe import parse_recipe
from hwnas.recipe.text import completed

Command = Callable[..., Any]


def paint(
    folder: Path, classes: int = 2, images: int = 20, size: tuple[int, int] = (40, 30)
) -> Path:
    """Write noisy images in one colour per class, one folder per class."""
    rng = np.random.default_rng(0)
    for c in range(classes):
        (folder / f"class-{c}").mkdir(parents=True)
        for i in range(images):
            pixels = rng.integers(0, 60, (*reversed(size), 3)) + 150 * np.eye(3)[c % 3]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"class-{c}/{i}.png")
    return folder


def test_recipe_for_images_follows_from_folder_target_and_minutes(tmp_path: Path) -> None:
    text = recipe_for_images(paint(tmp_path / "my photos"), 45, limit_ms=5)
    recipe, _ = parse_recipe(text)
    assert recipe.name == "my-photos"
    assert recipe.run.minutes == 45
    assert recipe.data.source == f"folder:{tmp_path / 'my photos'}"
    assert recipe.data.size == 30, "the shorter side of most"
    accuracy, latency = recipe.objective
    assert accuracy.label == "accuracy"
    assert latency.label == "latency_ms@cpu-onnxruntime-fp32-b1-t1"
    assert latency.limit == 5


def test_recipe_for_images_uses_the_slowest_of_several_targets(tmp_path: Path) -> None:
    targets = ["cpu-onnxruntime-fp32-b1-t1", "cpu-onnxruntime-fp32-b8-t1"]
    recipe, _ = parse_recipe(recipe_for_images(paint(tmp_path / "images"), 45, targets))
    assert recipe.objective[1].targets == tuple(targets)
    assert recipe.objective[1].reduce == "worst"


def test_recipe_for_images_chooses_image_size_by_the_budget(tmp_path: Path) -> None:
    folder = paint(tmp_path / "images", images=2, size=(400, 300))
    sizes = [parse_recipe(recipe_for_images(folder, m))[0].data.size for m in (45, 200, 600)]
    assert sizes == [112, 160, 224]


def test_completed_keeps_values_of_the_recipe() -> None:
    text = '[run]\nminutes = 9\n[train]\nepochs = 3\n[space]\nname = "vit"\n[search]\ntrials = 5\n'
    planned = {
        "train.budget_minutes": 2.0,
        "train.crop": 0.4,
        "space.name": "resnet",
        "space.preset": "compact",
        "search.trials": 12,
        "search.fidelity.keep": 2,
        "search.sampler": "stratified",
        "search.options.most_macs": 1e7,
    }
    assert tomllib.loads(completed(text, planned)) == {
        "run": {"minutes": 9},
        "train": {"epochs": 3, "crop": 0.4},
        "space": {"name": "vit"},
        "search": {
            "trials": 5,
            "fidelity": {"keep": 2},
            "sampler": "stratified",
            "options": {"most_macs": 1e7},
        },
    }
    chosen = tomllib.loads(completed('[search]\nsampler = "random"\n', planned))["search"]
    assert chosen["sampler"] == "random"
    assert "most_macs" not in chosen.get("options", {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say how long the job may take, such as --minutes 45"),
        (["--minutes", "1"], "run.minutes is 1; expected at least 3"),
        (["--minutes", "0"], "run.minutes is 0"),
        (["--minutes", "nan"], "run.minutes is nan"),
        (["--minutes", "9", "--target", "cpu-onnxruntim-fp32-b1-t1"], "did you mean"),
        (["--minutes", "9", "--limit-ms", "nan"], "the limit is nan ms; expected a time above 0"),
        (["--minutes", "9", "--limit-ms", "-1"], "the limit is -1 ms; expected a time above 0"),
        (["--minutes", "9", "--limit-ms", "inf"], "expected a finite number"),
    ],
)
def test_search_command_for_images_refuses_wrong_options_at_once(
    hwnas: Command, tmp_path: Path, options: list[str], message: str
) -> None:
    run = tmp_path / "run"
    images = paint(tmp_path / "images")
    hwnas("search", images, "--run", run, *options).refused(message)
    assert not run.exists()


def test_search_command_refuses_images_that_do_not_exist(hwnas: Command, tmp_path: Path) -> None:
    answer = hwnas("search", tmp_path / "images.npz", "--minutes", "9", "--run", tmp_path / "run")
    answer.refused("images.npz does not exist")


def test_search_command_refuses_image_options_with_a_recipe(
    hwnas: Command, quick_recipe: Path
) -> None:
    for option in (["--limit-ms", "5"], ["--target", "cpu-onnxruntime-fp32-b1-t1"]):
        hwnas("search", quick_recipe, *option).refused("--set objective.1.limit=5")
