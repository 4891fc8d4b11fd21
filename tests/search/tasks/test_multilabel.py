from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.multilabel import MultiLabel, multilabel
from hwnas.search.tasks.split_metrics import SplitMetrics

ImagesOf = Callable[[Any], ImageData]

METRICS = ("average_precision", "auroc", "macro_f1", "label_accuracy", "exact_match")


def test_multilabel_metrics_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, (60, 3))
    outputs = (rng.normal(size=(60, 3)) + 1.5 * true - 0.75).astype(np.float32)
    predicted = outputs >= 0
    collected = SplitMetrics(MultiLabel(("a", "b", "c"), None, METRICS))  # type: ignore[arg-type]
    for rows in (slice(0, 25), slice(25, 60)):
        collected.add(torch.from_numpy(outputs[rows]), torch.from_numpy(true[rows]).float())
    found = collected.values()
    assert {name: metric.value for name, metric in found.items()} == pytest.approx(
        {
            "average_precision": metrics.average_precision_score(true, outputs),
            "auroc": metrics.roc_auc_score(true, outputs),
            "macro_f1": metrics.f1_score(true, predicted, average="macro"),
            "label_accuracy": (predicted == true).mean(),
            "exact_match": metrics.accuracy_score(true, predicted),
        }
    )
    assert all(0 < metric.standard_error < 0.2 for metric in found.values())


def test_multilabel_takes_names_from_the_recipe_or_numbers(images_of: ImagesOf) -> None:
    data = images_of(np.random.default_rng(0).integers(0, 2, (20, 2)))
    assert multilabel(data).meaning.labels == ("0", "1")
    assert multilabel(data, names=["dog", "bicycle"]).meaning.labels == ("dog", "bicycle")


def test_multilabel_refuses_data_and_options_that_do_not_fit(
    images_of: ImagesOf, tmp_path: Path
) -> None:
    digits = load_data(DataConfig("digits"), tmp_path, 0, tmp_path)
    labels = np.random.default_rng(0).integers(0, 2, (20, 2))
    with pytest.raises(DataError, match=r"needs a 0 or 1 for each label, but .* are classes"):
        multilabel(digits)
    with pytest.raises(DataError, match=r"targets that are 0 or 1, but .* \[0\.5"):
        multilabel(images_of(np.full((20, 2), 0.5)))
    with pytest.raises(DataError, match="two labels or more"):
        multilabel(images_of(labels[:, :1]))
    with pytest.raises(DataError, match="label '1' is on all of the training images"):
        multilabel(images_of(labels | [[0, 1]]))
    with pytest.raises(DataError, match="label 'dog' is on none of the training images"):
        multilabel(images_of(labels * [[0, 1]]), names=["dog", "bicycle"])
    with pytest.raises(ConfigError, match="1 names, but the targets have 2 labels"):
        multilabel(images_of(labels), names=["dog"])
