"""Augmentation and sampling of images that a recipe asks for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.search import ImageData, TrainConfig
from hwnas.search.data.image_data import Split
from hwnas.search_spaces import mobilenet
from hwnas.stages.run_inputs import _check_augmentation

Command = Callable[..., Any]

_OWN = """
def brighter(images, targets, rng):
    return images // 2 + 128, targets

def fewer(images, targets, rng):
    return images[1:], targets[1:]

def broken(images, targets, rng):
    raise RuntimeError("no colours today")
"""


@pytest.fixture
def own(quick_recipe: Path) -> Path:
    """Write functions of the user's beside the recipe."""
    path = quick_recipe.with_name("augmentation_of_digits.py")
    path.write_text(_OWN)
    return path


def options(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.mark.slow
def test_search_trains_with_all_augmentation_and_again_if_the_own_function_changes(
    hwnas: Command, quick_recipe: Path, own: Path, tmp_path: Path
) -> None:
    settings = [
        "train.augment=augmentation_of_digits:brighter",
        "train.rand_augment=2",
        "train.erasing=0.3",
        "train.balanced=true",
    ]
    answer = hwnas("search", quick_recipe, "--run", tmp_path / "run", *options(settings))
    assert answer.status == 0, answer.err
    assert "nothing is left to do" in hwnas("resume", tmp_path / "run").err
    own.write_text(_OWN.replace("128", "64"))
    again = hwnas("resume", tmp_path / "run")
    assert "train is done again: code of augmentation_of_digits changed" in again.err


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["train.augment=nowhere:mirror"], "train.augment 'nowhere:mirror': module 'nowhere' does"),
        (["train.augment=augmentation_of_digits:dimmer"], "has no 'dimmer'"),
        (["train.augment=augmentation_of_digits:fewer"], "train.augment returned arrays of shapes"),
        (
            ["train.augment=augmentation_of_digits:broken"],
            "failed on the first training images (RuntimeError: no colours today)",
        ),
    ],
)
def test_search_refuses_an_own_augmentation_that_fails(
    hwnas: Command,
    quick_recipe: Path,
    own: Path,
    tmp_path: Path,
    settings: list[str],
    told: str,
) -> None:
    hwnas("search", quick_recipe, "--run", tmp_path / "run", *options(settings)).refused(told)
    assert not (tmp_path / "run").exists()


def data(targets: np.ndarray, channels: int = 1) -> ImageData:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (len(targets), 8, 8, channels), dtype=np.uint8)
    splits = (Split(images, targets, rows) for rows in np.split(np.arange(len(targets)), 3))
    return ImageData(*splits, None if targets.dtype == np.float32 else ("no", "yes"))


@pytest.mark.parametrize(
    ("data", "settings", "told"),
    [
        (data(np.arange(6) % 2, 4), {"rand_augment": 2}, "these have 4 channels; set it to 0"),
        (data(np.zeros((6, 1), np.float32)), {"balanced": True}, "targets are values; set it to f"),
        (
            data(np.arange(384, dtype=np.uint8).reshape(6, 8, 8) % 2),
            {"balanced": True},
            "targets are masks; set it to f",
        ),
        (data(np.zeros((6, 1), np.float32)), {"cutmix": 0.5}, "targets that are values; set it t"),
    ],
)
def test_augmentation_that_does_not_suit_the_data_is_refused(
    data: ImageData, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        _check_augmentation(TrainConfig(epochs=1, **settings), mobilenet((8, 8, 1), 2), data)
