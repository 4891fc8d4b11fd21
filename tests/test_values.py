"""Regression and multi-label classification, from an archive to the answer of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.progress import SilentReporter

RECIPE = """
name = "values"

[data]
source = "npz:images.npz"
validation_fraction = 0.25

[task]
name = "{task}"
names = ["bright", "high"]
metrics = {metrics}

[space]
name = "mobilenet"
resolution = [8]
width = [1.0]
stem_channels = 8
stem_stride = 1
head_channels = 16
feature_channels = 16
stages = [{{ channels = 8, depth = [1, 2] }}]

[train]
epochs = 30
batch_size = 32
learning_rate = 0.01
workers = 0

[[objective]]
metric = "{main}"
direction = "{direction}"

[[objective]]
metric = "macs"
direction = "minimize"

[search]
trials = 2
workers = 0

[deploy]
top = 1
finetune_epochs = 0
"""


def images(n: int = 300) -> tuple[Any, Any]:
    """Return images whose brightness, and the height of a bar, are two numbers in 0..1."""
    rng = np.random.default_rng(0)
    numbers = rng.random((n, 2))
    pixels = np.tile(40 + 100 * numbers[:, :1, None, None], (1, 8, 8, 1))
    rows = np.arange(8)[None, :, None, None]
    pixels += 80 * (rows >= 8 * (1 - numbers[:, 1])[:, None, None, None])
    return pixels.astype(np.uint8), numbers


def searched(folder: Path, targets: Any, **recipe: Any) -> Bundle:
    pixels, _ = images()
    cut = 220
    np.savez(
        folder / "images.npz",
        x_train=pixels[:cut],
        y_train=targets[:cut],
        x_test=pixels[cut:],
        y_test=targets[cut:],
    )
    (folder / "recipe.toml").write_text(RECIPE.format(**recipe))
    result = experiment.run(folder / "recipe.toml", folder / "run", reporter=SilentReporter())
    return Bundle.load(result.run / result.finalists[0].bundle)


@pytest.mark.slow
def test_regression_answers_in_the_units_of_the_data(tmp_path: Path) -> None:
    pixels, numbers = images()
    targets = numbers * [200.0, 0.01] + [1000.0, -0.5]
    bundle = searched(
        tmp_path,
        targets,
        task="regression",
        metrics='["r2", "root_mean_squared_error"]',
        main="r2",
        direction="maximize",
    )
    found = {(m["name"], m.get("split")): m["value"] for m in bundle.description["metrics"]}
    assert found["r2", "test"] > 0.7, "it has learned something"
    answers = bundle.run(pixels[220:])
    said = np.array([[a["values"]["bright"], a["values"]["high"]] for a in answers])
    error = np.sqrt(np.mean((said - targets[220:]) ** 2))
    assert error == pytest.approx(found["root_mean_squared_error", "test"], rel=0.01)
    card = (bundle.folder / "README.md").read_text()
    assert 'values = outputs[0] * np.array(about["outputs"]["scale"])' in card


@pytest.mark.slow
def test_multilabel_answers_with_the_labels_that_are_present(tmp_path: Path) -> None:
    pixels, numbers = images()
    labels = (numbers > 0.5).astype(np.uint8)
    bundle = searched(
        tmp_path,
        labels,
        task="multilabel",
        metrics='["average_precision", "label_accuracy"]',
        main="average_precision",
        direction="maximize",
    )
    found = {(m["name"], m.get("split")): m for m in bundle.description["metrics"]}
    assert found["average_precision", "test"]["value"] > 0.9
    assert 0 < found["average_precision", "test"]["standard_error"] < 0.1
    answers = bundle.run(pixels[220:])
    said = np.array([["bright" in a["present"], "high" in a["present"]] for a in answers])
    assert (said == labels[220:]).mean() == pytest.approx(
        found["label_accuracy", "test"]["value"], abs=0.02
    )
