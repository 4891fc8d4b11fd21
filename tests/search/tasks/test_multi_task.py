"""Several classifications of one image: metrics, names, and data that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch.nn import functional

from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.multi_task import MultiTask, multi_task, one_task_data
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.task import JointTask, smoothed

ImagesOf = Callable[[Any], ImageData]

TASK = MultiTask((("kind", ("cat", "dog", "owl")), ("side", ("left", "right"))), None)  # type: ignore[arg-type]


def classes(n: int = 24) -> Any:
    """Return the classes of two tasks, all of which are there."""
    return np.stack([np.arange(n) % 3, np.arange(n) // 3 % 2], axis=1)


def test_multi_task_metrics_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    targets = np.stack([rng.integers(0, 3, 50), rng.integers(0, 2, 50)], axis=1)
    outputs = rng.normal(size=(50, 5)).astype(np.float32)
    collected = SplitMetrics(TASK)
    for rows in (slice(0, 20), slice(20, 50)):
        collected.add(torch.from_numpy(outputs[rows]), torch.from_numpy(targets[rows]).float())
    found = {name: metric.value for name, metric in collected.values().items()}
    kind = metrics.accuracy_score(targets[:, 0], outputs[:, :3].argmax(1))
    side = metrics.accuracy_score(targets[:, 1], outputs[:, 3:].argmax(1))
    assert found == pytest.approx(
        {"accuracy": (kind + side) / 2, "kind_accuracy": kind, "side_accuracy": side}
    )
    assert [metric.name for metric in TASK.metrics] == [
        "accuracy",
        "kind_accuracy",
        "side_accuracy",
    ]


def test_multi_task_loss_is_the_mean_of_the_tasks_losses() -> None:
    outputs, targets = torch.randn(8, 5), torch.from_numpy(classes(8)).float()
    expected = [
        functional.cross_entropy(outputs[:, own], targets[:, t].long(), label_smoothing=0.1)
        for t, own in enumerate((slice(0, 3), slice(3, 5)))
    ]
    torch.testing.assert_close(TASK.loss(outputs, targets), sum(expected) / 2)
    assert smoothed(TASK, 0.0).loss(outputs, targets) != TASK.loss(outputs, targets)


def test_multi_task_takes_names_from_the_recipe_or_numbers(images_of: ImagesOf) -> None:
    data = images_of(classes())
    task = multi_task(data)
    assert task.tasks == (("task0", ("0", "1", "2")), ("task1", ("0", "1")))
    assert isinstance(task, JointTask)
    assert task.task_outputs == {"task0": 3, "task1": 2}
    names = [["cat", "dog", "owl"], ["left", "right"]]
    named = multi_task(data, names=["kind", "side"], class_names=names)
    assert named.meaning.labels == ("cat", "dog", "owl", "left", "right")
    assert named.meaning.tasks == (("kind", 3), ("side", 2))


def test_one_task_of_several_is_its_classification(images_of: ImagesOf) -> None:
    data = images_of(classes())
    task = multi_task(data, names=["kind", "side"])
    alone = one_task_data(data, task, "side")
    assert (alone.kind, alone.class_names) == ("classes", ("0", "1"))
    np.testing.assert_array_equal(alone.train.targets, classes()[:, 1])
    assert task.one_task("side").meaning.labels == ("0", "1")


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (classes() + 0.5, {}, r"classes, which are whole numbers from 0, .* \[0\.5, 0\.5\]"),
        (classes() - 1, {}, r"whole numbers from 0, but those of an image are \[-1\.0, -1\.0\]"),
        (classes()[:, :1], {}, "two tasks or more"),
        (classes() * [1, 0], {}, "task task1 has a single class, so there is nothing to learn"),
        (classes() * [1, 2], {}, "class '1' of task task1 is on no training image"),
        (classes(), {"names": ["kind"]}, "1 names, but the targets have 2 columns"),
        (classes(), {"names": ["a b", "c"]}, r"names is \['a b', 'c'\]; expected different names"),
        (classes(), {"names": ["a", "a"]}, r"names is \['a', 'a'\]; expected different names"),
        (classes(), {"class_names": [["x", "y"]]}, "class_names has 1 lists, but .* 2 columns"),
        (
            classes(),
            {"class_names": [["x", "y"], ["l", "r"]]},
            "task task0 has the class 2 on a training image, but 2 names of classes",
        ),
        (classes(), {"label_smoothing": 1.0}, r"label_smoothing is 1\.0; expected at least 0"),
    ],
)
def test_multi_task_refuses_data_and_options_that_do_not_fit(
    images_of: ImagesOf, targets: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as raised:
        multi_task(images_of(targets), **options)
    assert len(str(raised.value).splitlines()) == 1


def test_multi_task_refuses_classes_of_a_single_task(tmp_path: Path) -> None:
    digits = load_data(DataConfig("digits"), tmp_path, 0, tmp_path)
    with pytest.raises(DataError, match="needs a class of each task, but the targets are classes"):
        multi_task(digits)
