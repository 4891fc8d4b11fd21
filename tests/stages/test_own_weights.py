"""A search that begins with the trained model of a user, which is also the teacher."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from hwnas import experiment
from hwnas.progress import make_reporter
from hwnas.recipe import read_recipe
from hwnas.search.evaluation.scoring import score
from hwnas.search.training import NetworkStep, TrainConfig, fit, save_weights
from hwnas.stages import RunInputs
from hwnas.stages.finalists.bundles import read_bundles, score_of

MODEL = """
from torch import nn


def build_model(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, outputs),
    )
"""
RECIPE = """
name = "own-weights"
seed = 1

[data]
source = "digits"
validation_fraction = 0.2

[task]
name = "classification"

[space]
name = "elastic"
model = "plainly:build_model"
widths = [0.5, 1.0]

[train]
epochs = 2
learning_rate = 0.003
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
top = 2
finetune_epochs = 2
finetune_learning_rate = 0.002
"""
WHOLE_ACCURACY = 0.9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with a recipe, a model and its trained weights."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "plainly.py").write_text(MODEL)
    (folder / "recipe.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        recipe, _ = read_recipe(folder / "recipe.toml")
        found = RunInputs.prepare(recipe, folder)
        torch.manual_seed(0)
        model: nn.Module = sys.modules["plainly"].build_model(10)
        config = TrainConfig(epochs=8, learning_rate=0.01, workers=0)
        fit(model, NetworkStep(model, found.task, (1, 8, 8)), found.data.train, config, 0)
        whole = score(model.eval(), found.task, found.data.validation, (1, 8, 8), "validation")
        assert whole.values["accuracy"] > WHOLE_ACCURACY
        save_weights(folder / "trained.safetensors", model.state_dict())
        yield folder
    sys.modules.pop("plainly", None)


@pytest.mark.slow
@pytest.mark.parametrize("sees", ["augmented", "plain"])
def test_search_from_own_weights_keeps_the_accuracy_of_the_model(folder: Path, sees: str) -> None:
    settings = ['space.weights="trained.safetensors"', f'train.teacher_sees="{sees}"']
    run = folder / sees
    experiment.run(folder / "recipe.toml", run, settings, reporter=make_reporter(quiet=True))
    bundles = read_bundles(run / "bundles").values()
    assert len(bundles) == 2
    for bundle in bundles:
        assert score_of(bundle, "accuracy", "validation")["value"] > WHOLE_ACCURACY - 0.03
