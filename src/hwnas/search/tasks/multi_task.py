"""Several classifications of the same image, learned together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.errors import ConfigError, DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.split import Split
from hwnas.search.tasks.classification import Classification
from hwnas.search.tasks.task import Metric, check_label_smoothing

__all__ = ["PLUGINS", "MultiTask", "multi_task", "one_task_data"]

_MEAN = "accuracy"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class MultiTask:
    """Multi-task classification: each image belongs to one class of every task.

    Outputs are the class scores of all tasks side by side. Targets are the numbers of the classes,
    (N, tasks).

    Attributes:
        tasks: Name and class names of each task, in the order of the outputs.
        preprocessing: Preprocessing at the size of the data's own images.
        label_smoothing: Share of the target probability that is spread over all classes of a task,
            in [0, 1).
    """

    tasks: tuple[tuple[str, tuple[str, ...]], ...]
    preprocessing: Preprocessing
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        check_label_smoothing(self.label_smoothing)

    @property
    def name(self) -> str:
        """Name of the task, ``"multi-task"``."""
        return "multi-task"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Accuracy of each task, after their mean."""
        names = (_MEAN, *(_accuracy_of(name) for name, _ in self.tasks))
        return tuple(Metric(name, "maximize", "fraction") for name in names)

    @property
    def outputs(self) -> int:
        """Number of outputs: one for each class of each task."""
        return sum(self.task_outputs.values())

    @property
    def task_outputs(self) -> dict[str, int]:
        """Number of outputs of each task by its name, in the order of the outputs."""
        return {name: len(classes) for name, classes in self.tasks}

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: one logit per class of each task."""
        labels = tuple(label for _, classes in self.tasks for label in classes)
        return OutputMeaning("task_class_scores", labels, tasks=tuple(self.task_outputs.items()))

    def smoothed(self, label_smoothing: float) -> MultiTask:
        """Return the same task with another label smoothing."""
        return replace(self, label_smoothing=label_smoothing)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over tasks of the cross-entropy with label smoothing, in nats."""
        losses = [
            functional.cross_entropy(scores, classes, label_smoothing=self.label_smoothing)
            for scores, classes in self._by_task(outputs.float(), targets)
        ]
        return torch.stack(losses).mean()

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return the mean over tasks of KL(teacher || network), in nats."""
        sizes = list(self.task_outputs.values())
        pairs = zip(
            torch.split_with_sizes(outputs.float(), sizes, 1),
            torch.split_with_sizes(teacher_outputs.detach().float(), sizes, 1),
            strict=True,
        )
        losses = [
            functional.kl_div(
                ours.log_softmax(1), theirs.log_softmax(1), reduction="batchmean", log_target=True
            )
            for ours, theirs in pairs
        ]
        return torch.stack(losses).mean()

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the metrics of each image, (N,): 1 if the class of a task is right, else 0.

        ``accuracy`` is the share of the tasks whose class is right.
        """
        right = {
            _accuracy_of(name): (scores.argmax(1) == classes).float()
            for (name, _), (scores, classes) in zip(
                self.tasks, self._by_task(outputs, targets), strict=True
            )
        }
        return {_MEAN: torch.stack(list(right.values())).mean(0), **right}

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the accuracies of the whole split, which are means over images."""
        return dict(means)

    def one_task(self, task: str) -> Classification:
        """Return the classification of one of the tasks."""
        return Classification(dict(self.tasks)[task], self.preprocessing, self.label_smoothing)

    def metric_of(self, task: str) -> str:
        """Return the name of the accuracy of one of the tasks."""
        return _accuracy_of(task)

    def _by_task(self, outputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the scores (N, classes) and the classes (N,) of each task."""
        scores = torch.split_with_sizes(outputs, list(self.task_outputs.values()), 1)
        yield from zip(scores, targets.long().unbind(1), strict=True)


def _accuracy_of(task: str) -> str:
    return f"{task}_{_MEAN}"


def multi_task(
    data: ImageData,
    names: Sequence[str] = (),
    class_names: Sequence[Sequence[str]] = (),
    label_smoothing: float = 0.1,
) -> MultiTask:
    """Return the multi-task classification of a data set.

    Args:
        data: Data set whose targets are the numbers of the classes, (N, tasks), and that gives size
            and colour statistics of the images.
        names: Names of the tasks, in the order of the targets; by default those of the data, or
            else ``task0``, ``task1`` and so on.
        class_names: Names of the classes of each task; by default those of the data, or else their
            numbers.
        label_smoothing: Share of the target probability that is spread over all classes of a task,
            in [0, 1).

    Raises:
        ConfigError: An option is out of range, or does not fit the number of tasks or classes.
        DataError: The targets of the data are not whole numbers from 0 for each of two tasks or
            more, or a class is on no training image.
    """
    targets = _checked_targets(data)
    count = targets.shape[1]
    named = tuple(names) or data.value_names or tuple(f"task{t}" for t in range(count))
    _check_names(named, count)
    known = _class_names(data, class_names, count)
    tasks = [
        (name, _checked_classes(name, targets[:, t], known[t])) for t, name in enumerate(named)
    ]
    _check_others(data, tasks)
    return MultiTask(tuple(tasks), data.preprocessing, label_smoothing)


def one_task_data(data: ImageData, task: MultiTask, name: str) -> ImageData:
    """Return the same images with the classes of one of the tasks as targets."""
    names = [each for each, _ in task.tasks]
    column = names.index(name)

    def of_task(split: Split) -> Split:
        classes = split.image_targets[:, column].astype(np.int64)
        return Split(split.images, classes, split.positions)

    return replace(
        data,
        train=of_task(data.train),
        validation=of_task(data.validation),
        test=of_task(data.test),
        class_names=task.tasks[column][1],
        value_names=None,
        value_classes=None,
        folds=tuple(map(of_task, data.folds)),
    )


def _checked_targets(data: ImageData) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return the targets of the training images, which are whole numbers from 0, (N, tasks)."""
    if data.kind != "values":
        raise DataError(
            f"task multi-task needs a class of each task, but the targets are {data.kind}; name "
            "another task, or let data.source give whole numbers (N, tasks)"
        )
    for split in (data.train, data.validation, data.test):
        targets = split.targets
        odd = np.flatnonzero(((targets < 0) | (targets != np.floor(targets))).any(axis=1))
        if len(odd):
            raise DataError(
                "task multi-task needs classes, which are whole numbers from 0, but those of an "
                f"image are {targets[odd[0]].tolist()}; correct them, or name task regression"
            )
    found = data.train.targets
    if found.shape[1] < 2:
        raise DataError(
            "task multi-task needs two tasks or more; for a single one, use task classification"
        )
    return found


def _check_names(names: Sequence[str], count: int) -> None:
    if len(names) != count:
        raise ConfigError(
            f"task.names has {len(names)} names, but the targets have {count} columns; give one "
            "for each"
        )
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            raise ConfigError(
                f"task.names is {list(names)}; expected different names of letters, digits, _ and "
                "-; set task.names"
            )


def _class_names(
    data: ImageData, given: Sequence[Sequence[str]], count: int
) -> tuple[tuple[str, ...], ...]:
    """Return the class names of each task; empty for a task whose classes have none."""
    if given and len(given) != count:
        raise ConfigError(
            f"task.class_names has {len(given)} lists, but the targets have {count} columns; give "
            "one for each"
        )
    if given:
        return tuple(tuple(names) for names in given)
    return data.value_classes or ((),) * count


def _checked_classes(
    task: str, classes: np.ndarray[tuple[int], np.dtype[np.float32]], names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of a task's classes, all of which are on training images."""
    highest = int(classes.max())
    named = names or tuple(map(str, range(highest + 1)))
    if highest >= len(named):
        raise DataError(
            f"task {task} has the class {highest} on a training image, but {len(named)} names of "
            "classes; correct the targets or task.class_names"
        )
    if len(named) < 2:
        raise DataError(
            f"task {task} has a single class, so there is nothing to learn; leave it out"
        )
    missing = np.setdiff1d(np.arange(len(named)), classes)
    if len(missing):
        raise DataError(
            f"class {named[int(missing[0])]!r} of task {task} is on no training image; add some, "
            "raise data.train_limit, or number the classes without gaps"
        )
    return named


def _check_others(data: ImageData, tasks: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    for part, split in (("validation", data.validation), ("test", data.test)):
        highest = split.targets.max(axis=0)
        for (name, classes), found in zip(tasks, highest, strict=True):
            if found >= len(classes):
                raise DataError(
                    f"task {name} has the class {int(found)} on a {part} image, but on no training "
                    "image; add some, or leave these images out"
                )


PLUGINS = (
    Plugin(
        "task",
        "multi-task",
        multi_task,
        "A class of each of several tasks per image; metrics accuracy of each task and their mean",
    ),
)
