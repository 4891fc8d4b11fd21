"""Training that continues from its checkpoint although some settings have changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hwnas.search.data.image_data import ImageData
from hwnas.search.data.split import Split
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import (
    CONTINUABLE,
    NO_EFFECT,
    Batch,
    NetworkStep,
    TrainConfig,
    TrainingPoint,
    fit,
    restamp_checkpoint,
)
from hwnas.search.training.checkpoint import load_weights
from hwnas.search.training.schedule import Schedule

CONFIG = TrainConfig(epochs=2, batch_size=25, workers=0, checkpoint_seconds=1e-9)
Train = Callable[..., list[TrainingPoint]]


@pytest.fixture
def train(digits_task: Classification, few_digits: ImageData, tmp_path: Path) -> Train:
    """Return a function that trains, or resumes its checkpoint, and returns the new rows."""

    def session(config: TrainConfig, stop: int = -1) -> list[TrainingPoint]:
        class Stopped(Exception):
            pass

        rows: list[TrainingPoint] = []

        def on_row(row: TrainingPoint) -> None:
            rows.append(row)
            if row.step == stop:
                raise Stopped

        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        step = NetworkStep(network, digits_task, (1, 8, 8))
        file = tmp_path / "checkpoint.safetensors"
        try:
            fit(network, step, few_digits.train, config, 0, checkpoint=file, run="run",
                on_row=on_row)  # fmt: skip
        except Stopped:
            rows.pop()  # it is not in the checkpoint
        return rows

    return session


def test_continuable_and_ineffective_settings_are_disjoint() -> None:
    names = {each.name for each in fields(TrainConfig)}
    assert names > NO_EFFECT | CONTINUABLE
    assert not NO_EFFECT & CONTINUABLE


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_identity_excludes_settings_without_effect(name: str) -> None:
    other = {"checkpoint_seconds": 5.0, "workers": 7, "ranking_check": 9, "ranking_epochs": 2.0}
    other |= {"cpus_per_worker": 3, "gpus_per_worker": 1}
    changed = replace(CONFIG, **{name: other[name]})
    assert changed != CONFIG
    assert changed.identity == CONFIG.identity


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 3.0},
        {"epochs": None, "budget_minutes": 1.0},
        {"batch_size": 30},
        {"accumulate": 2},
    ],
)
def test_continued_identity_excludes_continuable_settings(
    settings: dict[str, Any],
) -> None:
    changed = replace(CONFIG, **settings)
    assert changed.identity != CONFIG.identity
    assert changed.continued_identity == CONFIG.continued_identity
    other = replace(changed, learning_rate=0.1)
    assert other.continued_identity != CONFIG.continued_identity


def test_identity_excludes_defaults() -> None:
    assert TrainConfig(epochs=3).identity == {"schema": 1, "epochs": 3}


def test_more_epochs_continue_at_their_share_of_the_new_budget(train: Train) -> None:
    first = train(CONFIG)
    assert len(first) == 12
    assert first[-1].learning_rate < 0.05 * CONFIG.learning_rate
    more = train(replace(CONFIG, epochs=4))
    assert [row.step for row in more] == list(range(12, 24))
    assert [row.share for row in more] == pytest.approx([i / 24 for i in range(12, 24)])
    assert [row.epoch for row in more] == pytest.approx([i / 6 for i in range(12, 24)])
    schedule = 0.5 * (1 + math.cos(math.pi * (0.5 - 0.05) / 0.95))
    assert more[0].learning_rate == pytest.approx(CONFIG.learning_rate * schedule)
    rates = [row.learning_rate for row in more]
    assert rates == sorted(rates, reverse=True)
    assert not any(row.note for row in more)
    assert np.mean([row.loss for row in more]) < np.mean([row.loss for row in first])
    assert train(replace(CONFIG, epochs=4)) == []


@pytest.mark.slow
def test_more_minutes_continue_a_training_of_minutes(train: Train) -> None:
    minutes = replace(CONFIG, epochs=None, budget_minutes=0.025)
    first = train(minutes)
    more = train(replace(minutes, budget_minutes=0.05))
    assert more[0].step == first[-1].step + 1
    assert 0.5 <= more[0].share < 1


def test_more_epochs_continue_the_state_of_the_optimiser(train: Train, tmp_path: Path) -> None:
    train(CONFIG)
    before = load_weights(tmp_path / "checkpoint.safetensors")
    train(replace(CONFIG, epochs=4))
    after = load_weights(tmp_path / "checkpoint.safetensors")
    assert before["optimizer.0.step"].item() == 12
    assert after["optimizer.0.step"].item() == 24


def test_another_batch_size_continues_with_the_remaining_images(train: Train) -> None:
    train(replace(CONFIG, batch_size=50), stop=4)  # 4 steps of 50 images are in the checkpoint
    rest = train(replace(CONFIG, batch_size=25))
    assert [row.step for row in rest] == [4, 5, 6, 7]
    assert rest[0].epoch == pytest.approx(4 / 3)
    assert rest[0].share == pytest.approx(8 / 12)
    assert rest[-1].share == pytest.approx(11 / 12)


def rows_of(batch: Batch) -> list[int]:
    assert batch.rows is not None
    return batch.rows.tolist()


def test_smaller_batches_use_each_image_of_an_epoch_once(
    few_digits: ImageData,
) -> None:
    from hwnas.search.training.checkpoint import Position

    large = replace(CONFIG, batch_size=50, shift_pixels=0)
    start = Schedule(large, few_digits.train, 0)
    seen = [row for step in range(2) for row in rows_of(start.batch(step))]
    position = Position(2, 0.0, "run", settings=large.continuable)
    small = Schedule(replace(large, batch_size=25), few_digits.train, 0)
    continued = small.continued(position)
    assert continued is not None
    schedule, position = continued
    seen += [row for step in (2, 3) for row in rows_of(schedule.batch(step))]
    assert sorted(seen) == list(range(150))


def test_changed_batch_size_resets_the_parts_of_a_batch(train: Train, tmp_path: Path) -> None:
    """After a memory error, batches go in two parts; a new batch size starts with one part."""
    file = tmp_path / "checkpoint.safetensors"
    train(CONFIG, stop=4)
    rewrite(file, parts=2)
    train(CONFIG, stop=6)
    assert about(file)["parts"] == 2
    train(replace(CONFIG, batch_size=15))
    assert about(file)["parts"] == 1


@pytest.mark.parametrize("settings", [{"epochs": 1.0}, {"batch_size": 30}, {"accumulate": 5}])
def test_changed_setting_that_cannot_continue_restarts_with_a_note(
    train: Train, settings: dict[str, Any]
) -> None:
    train(CONFIG)
    again = train(replace(CONFIG, **settings))
    assert again[0].step == 0
    assert (
        "trained again from the start: the checkpoint has 12 steps, more than the current"
        in again[0].note
    )
    assert not any(row.note for row in again[1:])


def test_setting_without_effect_trains_no_further(train: Train) -> None:
    train(CONFIG)
    assert train(replace(CONFIG, workers=1, checkpoint_seconds=3.0)) == []


def test_restamped_checkpoint_of_an_older_version_continues(train: Train, tmp_path: Path) -> None:
    """Older checkpoints have no settings, and another name of the run."""
    file = tmp_path / "checkpoint.safetensors"
    train(CONFIG)
    rewrite(file, settings=None, offset=None, run="as it was called then")
    restamp_checkpoint(file, "run", CONFIG)
    assert train(CONFIG) == []
    assert [row.step for row in train(replace(CONFIG, epochs=3))] == list(range(12, 18))


def about(file: Path) -> dict[str, Any]:
    import json

    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        found: dict[str, Any] = json.loads(opened.metadata()["hwnas"])
    return found


def rewrite(file: Path, **changes: Any) -> None:
    """Change the metadata of a checkpoint; None removes an entry."""
    import json

    said = {k: v for k, v in (about(file) | changes).items() if v is not None}
    save_file(load_file(file), file, {"hwnas": json.dumps(said)})


@pytest.mark.parametrize(("kind", "pixels"), [("classes", 1), ("masks", 1), ("values", 0)])
def test_default_shift_is_zero_for_value_targets(kind: Any, pixels: int) -> None:
    assert CONFIG.augmentation(kind).shift_pixels == pixels
    assert replace(CONFIG, shift_pixels=2).augmentation(kind).shift_pixels == 2
    assert replace(CONFIG, shift_pixels=0).augmentation(kind).shift_pixels == 0


@pytest.mark.parametrize(("settings", "shifted"), [({}, False), ({"shift_pixels": 1}, True)])
def test_fit_does_not_shift_images_of_a_regression_by_default(
    settings: dict[str, Any], shifted: bool
) -> None:
    """The target is the position of a dot, which a shift would change."""
    images = np.zeros((20, 8, 8, 1), np.uint8)
    images[np.arange(20), 3, 4] = 255
    targets = np.full((20, 2), 0.5, np.float32)
    split = Split(images, targets, np.arange(20))
    seen: list[bool] = []

    class Watching:
        def __call__(self, batch: Batch, moment: Any) -> tuple[float, float]:
            seen.append(bool((batch.images[:, 3, 4] == 255).all()))
            return 0.0, 0.0

    config = TrainConfig(epochs=1, batch_size=10, workers=0, **settings)
    fit(nn.Linear(1, 1), Watching(), split, config, 0)
    assert all(seen) != shifted
