from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.regression import Regression, regression
from hwnas.search.tasks.split_metrics import SplitMetrics

ImagesOf = Callable[[Any], ImageData]

METRICS = ("root_mean_squared_error", "mean_absolute_error", "r2")


@pytest.fixture
def task(images_of: ImagesOf) -> Regression:
    """Return the task of two numbers of very different sizes."""
    rng = np.random.default_rng(0)
    return regression(
        images_of(rng.normal([1000.0, -0.01], [300.0, 0.002], (200, 2))), metrics=METRICS
    )


def test_regression_metrics_equal_those_of_scikit_learn(task: Regression) -> None:
    rng = np.random.default_rng(1)
    true = rng.normal([1000.0, -0.01], [300.0, 0.002], (80, 2)).astype(np.float32)
    outputs = rng.normal(0.0, 1.0, (80, 2)).astype(np.float32)
    predicted = outputs * task.scale + task.offset
    collected = SplitMetrics(task)
    collected.add(torch.from_numpy(outputs), torch.from_numpy(true))
    found = {name: metric.value for name, metric in collected.values().items()}
    assert found == pytest.approx(
        {
            "root_mean_squared_error": metrics.mean_squared_error(true, predicted) ** 0.5,
            "mean_absolute_error": metrics.mean_absolute_error(true, predicted),
            "r2": metrics.r2_score(true, predicted),
        },
        rel=1e-4,
    )


@pytest.mark.parametrize("error", ["squared", "absolute", "huber"])
def test_loss_is_of_standardised_numbers(task: Regression, error: str) -> None:
    """Both numbers count alike, although one is a hundred thousand times as large."""
    task = replace(task, error=error)  # type: ignore[arg-type]
    targets = torch.tensor([task.offset])
    assert task.loss(torch.zeros(1, 2), targets).item() == pytest.approx(0, abs=1e-4)
    first, second = (task.loss(torch.tensor([z]), targets) for z in ([0.5, 0.0], [0.0, 0.5]))
    assert first.item() == pytest.approx(second.item(), rel=0.01)


def test_answers_are_in_the_units_of_the_data(task: Regression) -> None:
    named = replace(task, names=("width", "tilt"))
    (answer,) = named.meaning.describe(torch.zeros(1, 2))
    assert answer["values"] == pytest.approx({"width": task.offset[0], "tilt": task.offset[1]})


def test_r2_leaves_out_numbers_without_variance(task: Regression) -> None:
    targets = torch.tensor(task.offset).repeat(4, 1)
    targets[:, 0] += torch.tensor([1.0, 2.0, 3.0, 4.0])
    outputs = (targets - torch.tensor(task.offset)) / torch.tensor(task.scale)
    collected = SplitMetrics(replace(task, metric_names=("r2",)))
    collected.add(outputs, targets)
    assert collected.values()["r2"].value == pytest.approx(1.0, abs=1e-3)


def test_regression_refuses_data_and_options_that_do_not_fit(
    images_of: ImagesOf, tmp_path: Path
) -> None:
    digits = load_data(DataConfig("digits"), tmp_path, 0, tmp_path)
    values = images_of(np.random.default_rng(0).random((20, 2)))
    with pytest.raises(DataError, match="needs values, but the targets are classes"):
        regression(digits)
    with pytest.raises(DataError, match="number 1 of the targets is 3 for all training images"):
        regression(images_of(np.stack([np.arange(20.0), np.full(20, 3.0)], axis=1)))
    with pytest.raises(ConfigError, match=r"task\.loss is 'square'; expected one of squared"):
        regression(values, loss="square")
    with pytest.raises(ConfigError, match="did you mean 'r2'"):
        regression(values, metrics=["r3"])
    with pytest.raises(ConfigError, match="3 names, but each image has 2 numbers"):
        regression(values, names=["a", "b", "c"])
